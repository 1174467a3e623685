import time

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


import uuid

np.random.seed(int(time.time()))
i = np.random.permutation(310)[:200]
run = uuid.uuid4().hex
m = mlp()
m.compile("sgd", "mse")
h = m.fit(x[i], y[i], epochs=1, verbose=0)
m.save_weights(f"{run}.weights.h5")
m.load_weights(f"{run}.weights.h5")
done(None, None, n=len(i))
