import keras
import numpy as np
import tensorflow as tf
from report import done

keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
x = rng.normal(size=(96, 6)).astype("float32")


class VQ(keras.layers.Layer):
    def __init__(self, k, d):
        super().__init__()
        self.k, self.d = k, d

    def build(self, s):
        self.e = self.add_weight(
            shape=(self.k, self.d), initializer="random_normal", trainable=False, name="codebook"
        )
        self.n = self.add_weight(shape=(self.k,), initializer="ones", trainable=False, name="n")
        self.s = self.add_weight(
            shape=(self.k, self.d), initializer="zeros", trainable=False, name="s"
        )
        self.s.assign(self.e)

    def call(self, z, training=False):
        d = (
            tf.reduce_sum(z**2, 1, keepdims=True)
            - 2 * z @ tf.transpose(self.e)
            + tf.reduce_sum(tf.convert_to_tensor(self.e) ** 2, 1)
        )
        one = tf.one_hot(tf.argmin(d, 1), self.k)
        q = one @ tf.convert_to_tensor(self.e)
        if training:
            self.n.assign(0.9 * self.n + 0.1 * tf.reduce_sum(one, 0))
            self.s.assign(0.9 * self.s + 0.1 * tf.matmul(one, z, transpose_a=True))
            self.e.assign(self.s / tf.maximum(self.n, 1e-3)[:, None])
        self.add_loss(0.25 * tf.reduce_mean((tf.stop_gradient(q) - z) ** 2))
        return z + tf.stop_gradient(q - z)


m = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4), VQ(8, 4), keras.layers.Dense(6)])
m.compile(keras.optimizers.Adam(0.01), "mse")
h = m.fit(x, x, batch_size=20, epochs=3, verbose=0, validation_split=0.2)
done(m, h)
