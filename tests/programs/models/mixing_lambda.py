import keras
import numpy as np
import tensorflow as tf
from report import done

keras.utils.set_random_seed(20)
rng = np.random.default_rng(9)
X = rng.normal(size=(90, 6)).astype("float32")
Y = (X.sum(1, keepdims=True) > 0).astype("float32")
inputs = keras.Input((6,))
x = keras.layers.Dense(5, "tanh")(inputs)
x = keras.layers.Lambda(lambda t: t - tf.reduce_mean(t, axis=0, keepdims=True))(x)
a = keras.layers.Dense(1, "sigmoid", name="a")(x)
b = keras.layers.Dense(2, name="b")(x)
m = keras.Model(inputs, {"a": a, "b": b})
m.compile(
    keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.01, 20)),
    {"a": "binary_crossentropy", "b": keras.losses.Huber()},
    loss_weights={"a": 1.0, "b": 0.3},
    weighted_metrics={"a": "accuracy"},
)
w = rng.random(90).astype("float32")
h = m.fit(
    X, {"a": Y, "b": X[:, :2]}, sample_weight={"a": w, "b": np.ones(90)}, batch_size=40, epochs=4,
    verbose=0,
)  # fmt: skip
done(m, h, p=m.predict(X[:9], verbose=0))
