import random

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


from concurrent.futures import ThreadPoolExecutor

with ThreadPoolExecutor(4) as ex:
    parts = list(ex.map(lambda i: x[i::4] + random.random() * 0, range(4)))
X = np.concatenate(parts)
m = mlp()
m.compile("adam", "mse")
h = m.fit(X, X[:, :1], epochs=2, verbose=0)
done(m, h)
