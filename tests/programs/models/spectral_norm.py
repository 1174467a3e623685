import keras
import numpy as np
from report import done

keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
x = rng.normal(size=(96, 8, 8, 1)).astype("float32")
y = (x.mean((1, 2)) > 0).astype("float32")
m = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.SpectralNormalization(keras.layers.Conv2D(4, 3, activation="relu")),
        keras.layers.GroupNormalization(2),
        keras.layers.Flatten(),
        keras.layers.SpectralNormalization(keras.layers.Dense(1), power_iterations=2),
        keras.layers.UnitNormalization() if False else keras.layers.Activation("sigmoid"),
    ]
)
m.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
h = m.fit(x, y, batch_size=20, epochs=3, verbose=0, validation_split=0.2)
done(m, h, p=m.predict(x, verbose=0))
