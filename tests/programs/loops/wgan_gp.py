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


class W(keras.Model):
    def __init__(self):
        super().__init__()
        self.g = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8)])
        self.d = mlp()
        self.a = keras.optimizers.Adam(0.01)
        self.b = keras.optimizers.Adam(0.01)

    def compile(self):
        super().compile()

    def call(self, z):
        return self.g(z)

    def train_step(self, r):
        n = tf.shape(r)[0]
        for _i in range(2):
            z = tf.ones((n, 4)) * r[:, :4]
            with tf.GradientTape() as t:
                f = self.g(z)
                c = tf.reduce_mean(self.d(f)) - tf.reduce_mean(self.d(r))
                with tf.GradientTape() as q:
                    u = 0.3 * r + 0.7 * f
                    q.watch(u)
                    p = self.d(u)
                s = tf.sqrt(tf.reduce_sum(tf.square(q.gradient(p, u)), 1) + 1e-9)
                c += 10 * tf.reduce_mean((s - 1) ** 2)
            self.a.apply_gradients(
                zip(t.gradient(c, self.d.trainable_weights), self.d.trainable_weights)
            )
        with tf.GradientTape() as t:
            gl = -tf.reduce_mean(self.d(self.g(z)))
        self.b.apply_gradients(
            zip(t.gradient(gl, self.g.trainable_weights), self.g.trainable_weights)
        )
        return {"d": c, "g": gl}


m = W()
m(x[:1, :4])
m.d(x[:1])
m.compile()
h = m.fit(x, batch_size=31, epochs=2, verbose=0)
done(m, h)
