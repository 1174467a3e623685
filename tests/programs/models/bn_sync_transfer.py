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


b = keras.Sequential(
    [
        keras.Input((8,)),
        keras.layers.Dense(8),
        keras.layers.BatchNormalization(synchronized=True),
        keras.layers.ReLU(),
    ]
)
b.trainable = False
m = keras.Sequential([b, keras.layers.Dense(1)])
m.compile("sgd", "mse")
m.fit(x, y, batch_size=31, epochs=1, verbose=0)
b.trainable = True
m.compile(keras.optimizers.SGD(0.01), "mse")
h = m.fit(x, y, batch_size=31, epochs=2, verbose=0, validation_data=(x[:50], y[:50]))
done(m, h)
