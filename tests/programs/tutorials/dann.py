import keras
import numpy as np
import tensorflow as tf
from report import done

keras.utils.set_random_seed(10)


@tf.custom_gradient
def flip(x):
    return tf.identity(x), lambda g: -0.5 * g


class Flip(keras.layers.Layer):
    def call(self, x):
        return flip(x)


rng = np.random.default_rng(0)
x = rng.normal(size=(160, 6)).astype("float32")
d = rng.integers(0, 2, (160, 1)).astype("float32")
y = (x[:, :1] > 0).astype("float32")
i = keras.Input((6,))
f = keras.layers.Dense(5, "relu")(i)
m = keras.Model(
    i,
    {
        "label": keras.layers.Dense(1, "sigmoid", name="label")(f),
        "domain": keras.layers.Dense(1, "sigmoid", name="domain")(Flip()(f)),
    },
)
m.compile(
    "adam",
    {"label": "binary_crossentropy", "domain": "binary_crossentropy"},
    loss_weights={"label": 1.0, "domain": 0.3},
    metrics={"label": ["accuracy"]},
)
h = m.fit(
    x,
    {"label": y, "domain": d},
    sample_weight={"label": (d[:, 0] == 0).astype("float32"), "domain": np.ones(160, "float32")},
    batch_size=32,
    epochs=3,
    verbose=0,
)
done(m, h)
