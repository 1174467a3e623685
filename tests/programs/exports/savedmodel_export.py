import os
import time

import keras
import numpy as np
import tensorflow as tf
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


m = mlp()
m.compile("sgd", "mse")
h = m.fit(x, y, epochs=1, verbose=0)
m.export(f"exp/{int(time.time() * 1000)}")
d = "exp/" + os.listdir("exp")[0]
r = tf.saved_model.load(d)
done(m, h, p=float(tf.reduce_sum(r.serve(x[:5]))))
