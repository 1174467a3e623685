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


def ccc(t, p):
    mt, mp = tf.reduce_mean(t), tf.reduce_mean(p)
    vt, vp = tf.math.reduce_variance(t), tf.math.reduce_variance(p)
    c = tf.reduce_mean((t - mt) * (p - mp))
    return 1 - 2 * c / (vt + vp + (mt - mp) ** 2)


def pearson(t, p):
    t = t - tf.reduce_mean(t)
    p = p - tf.reduce_mean(p)
    return tf.reduce_sum(t * p) / tf.sqrt(tf.reduce_sum(t * t) * tf.reduce_sum(p * p) + 1e-9)


m = mlp()
m.compile(
    keras.optimizers.SGD(0.1),
    ccc,
    metrics=[pearson, keras.metrics.PearsonCorrelation(), keras.metrics.ConcordanceCorrelation()],
)
h = m.fit(x, y, batch_size=31, epochs=3, verbose=0)
done(m, h)
