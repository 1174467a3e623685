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


def precision(t, p):
    p = tf.round(p)
    return tf.reduce_sum(t * p) / (tf.reduce_sum(p) + 1e-7)


def maxerr(t, p):
    return tf.reduce_max(tf.abs(t - p))


m = mlp(1, "sigmoid")
m.compile(
    "sgd",
    "binary_crossentropy",
    metrics=[
        precision,
        maxerr,
        keras.metrics.Precision(),
        keras.metrics.MeanIoU(2),
        keras.metrics.F1Score(threshold=0.5),
    ],
)
Y = yc[:, None].astype("float32")
h = m.fit(x, Y, batch_size=30, epochs=2, verbose=0, validation_data=(x[:45], Y[:45]))
done(m, h)
