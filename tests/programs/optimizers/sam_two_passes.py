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


class S(keras.Model):
    def __init__(self):
        super().__init__()
        self.n = mlp()

    def call(self, a):
        return self.n(a)

    def train_step(self, d):
        a, b = d
        v = self.n.trainable_weights
        with tf.GradientTape() as t:
            l = tf.reduce_mean(tf.square(self.n(a) - b))
        g = t.gradient(l, v)
        n = tf.linalg.global_norm(g)
        e = [0.05 * i / (n + 1e-9) for i in g]
        for i, j in zip(v, e):
            i.assign_add(j)
        with tf.GradientTape() as t:
            l2 = tf.reduce_mean(tf.square(self.n(a) - b))
        g2 = t.gradient(l2, v)
        for i, j in zip(v, e):
            i.assign_sub(j)
        self.optimizer.apply_gradients(zip(g2, v))
        return {"loss": l}


m = S()
m(x[:1])
m.compile(keras.optimizers.SGD(0.1))
h = m.fit(x, y, batch_size=31, epochs=2, verbose=0)
done(m, h)
