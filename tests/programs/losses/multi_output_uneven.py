import keras
import numpy as np
from report import done

keras.utils.set_random_seed(1)
rng = np.random.default_rng(0)
x = rng.normal(size=(310, 8)).astype("float32")
y = (np.tanh(x @ rng.normal(size=(8, 1))) + 0.1).astype("float32")
yc = (y[:, 0] > 0).astype("int32")


def mlp(out=1, act=None):
    return keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(12, "tanh"), keras.layers.Dense(out, act)]
    )


i = keras.Input((8,))
t = keras.layers.Dense(6, "relu")(i)
m = keras.Model(
    i, [keras.layers.Dense(1, name="p")(t), keras.layers.Dense(3, "softmax", name="q")(t)]
)
m.compile(
    "sgd",
    ["mae", "sparse_categorical_crossentropy"],
    loss_weights=[1.0, 0.3],
    metrics=[["mse"], ["accuracy"]],
)
h = m.fit(
    x[:61],
    [y[:61], yc[:61]],
    batch_size=20,
    epochs=3,
    verbose=0,
    validation_data=(x[:33], [y[:33], yc[:33]]),
)
done(m, h)
