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


class V(keras.Model):
    def __init__(self):
        super().__init__()
        self.e = keras.layers.Dense(4)
        self.d = keras.layers.Dense(8)
        self.k = keras.metrics.Mean("kl")
        self.r = keras.metrics.Mean("rec")

    def call(self, a):
        return self.d(self.e(a)[:, :2])

    @property
    def metrics(self):
        return [self.k, self.r]

    def train_step(self, a):
        with tf.GradientTape() as t:
            z = self.e(a)
            mu, lv = z[:, :2], z[:, 2:]
            s = mu + tf.exp(lv / 2) * 0.0
            rec = tf.reduce_mean(tf.reduce_sum(tf.square(a - self.d(s)), 1))
            kl = tf.reduce_mean(tf.reduce_sum(-0.5 * (1 + lv - mu**2 - tf.exp(lv)), 1))
            loss = rec + 0.1 * kl
        v = self.trainable_weights
        self.optimizer.apply_gradients(zip(t.gradient(loss, v), v))
        self.k.update_state(kl)
        self.r.update_state(rec)
        return {"loss": loss, "sub": {"kl": self.k.result(), "rec": self.r.result()}}


m = V()
m(x[:1])
m.compile(keras.optimizers.Adam(0.01))
h = m.fit(x, batch_size=37, epochs=3, verbose=0)
done(m, None, h=h.history["loss"])
