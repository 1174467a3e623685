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


def ohem(t, p):
    l = keras.losses.binary_crossentropy(t, p)
    v, _ = tf.nn.top_k(l, tf.shape(l)[0] // 2)
    return tf.reduce_mean(v)


m = mlp(1, "sigmoid")
m.compile("sgd", ohem)
h = m.fit(x, yc[:, None].astype("float32"), batch_size=30, epochs=3, verbose=0)
done(m, h)
