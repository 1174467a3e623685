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


class M(keras.Model):
    def __init__(self):
        super().__init__()
        self.e = mlp(6)
        self.t = keras.metrics.Mean(name="c")

    def call(self, a):
        return self.e(a)

    @property
    def metrics(self):
        return [self.t]

    def train_step(self, d):
        with tf.GradientTape() as g:
            p = tf.math.l2_normalize(self.e(d), 1)
            q = tf.math.l2_normalize(self.e(d * 1.1 + 0.1), 1)
            s = tf.matmul(p, q, transpose_b=True) / 0.2
            n = tf.range(tf.shape(p)[0])
            loss = tf.reduce_mean(
                keras.losses.sparse_categorical_crossentropy(n, s, from_logits=True)
            )
        self.optimizer.apply_gradients(
            zip(g.gradient(loss, self.e.trainable_variables), self.e.trainable_variables)
        )
        self.t.update_state(loss)
        return {"c": self.t.result()}


m = M()
m(x[:2])
m.compile(keras.optimizers.Adam(0.01))
h = m.fit(x, batch_size=31, epochs=2, verbose=0)
done(m, h)
