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


g = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(8)])
d = mlp(1, "sigmoid")
d.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")
d.trainable = False
i = keras.Input((4,))
c = keras.Model(i, d(g(i)))
c.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")
hist = []
for _step in range(12):
    r = np.random.randint(0, len(x), 16)
    n = np.random.normal(size=(16, 4)).astype("float32")
    f = g.predict(n, verbose=0)
    a = d.train_on_batch(np.concatenate([x[r], f]), np.r_[np.ones((16, 1)), np.zeros((16, 1))])
    b = c.train_on_batch(n, np.ones((16, 1)))
    hist.append([float(np.ravel(a)[0]), float(np.ravel(b)[0])])
done(c, None, hist=hist)
