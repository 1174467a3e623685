import keras
import numpy as np
from report import done

keras.utils.set_random_seed(12)
rng = np.random.default_rng(6)
X = rng.normal(size=(100, 8)).astype("float32")
Y = (X @ rng.normal(size=(8, 2))).astype("float32")
m = keras.Sequential(
    [keras.Input((8,)), keras.layers.Dense(16, "tanh", name="a"), keras.layers.Dense(2, name="b")]
)
m.compile("adam", "mse")
h = m.fit(X, Y, batch_size=32, epochs=2, validation_split=0.2, verbose=0)
m.get_layer("a").enable_lora(2)
m.get_layer("b").trainable = False
m.compile(keras.optimizers.Adam(1e-2, gradient_accumulation_steps=2), "mse", steps_per_execution=3)
h2 = m.fit(X, Y, batch_size=25, epochs=3, initial_epoch=1, verbose=0)
copy = keras.models.clone_model(m)
copy.set_weights(m.get_weights())
m.quantize("int8")
done(m, h, h2=h2.history, p=m.predict(X[:5], verbose=0), c=copy.predict(X[:5], verbose=0))
