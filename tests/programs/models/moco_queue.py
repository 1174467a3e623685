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


class Q(keras.Model):
    def __init__(self):
        super().__init__()
        self.e = mlp(4)
        self.q = self.add_weight(
            shape=(62, 4), initializer="glorot_uniform", trainable=False, name="q"
        )

    def call(self, a):
        return self.e(a)

    def train_step(self, a):
        with tf.GradientTape() as t:
            z = tf.math.l2_normalize(self.e(a), 1)
            l = tf.reduce_mean(
                -tf.reduce_sum(z * tf.stop_gradient(z), 1)
                + tf.reduce_logsumexp(tf.matmul(z, self.q, transpose_b=True), 1)
            )
        self.optimizer.apply_gradients(
            zip(t.gradient(l, self.e.trainable_variables), self.e.trainable_variables)
        )
        self.q.assign(tf.concat([z, self.q], 0)[:62])
        return {"loss": l}


m = Q()
m(x[:1])
m.compile("sgd")
h = m.fit(x, batch_size=31, epochs=2, verbose=0, shuffle=False)
done(m, h)
