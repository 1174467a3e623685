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


class D(keras.Model):
    def __init__(self):
        super().__init__()
        self.n = keras.Sequential(
            [keras.Input((9,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(8)]
        )
        self.e = keras.models.clone_model(self.n)
        self.e.set_weights(self.n.get_weights())
        self.e.trainable = False

    def call(self, a):
        return self.n(a)

    def train_step(self, a):
        n = tf.shape(a)[0]
        t = tf.cast(tf.range(n) % 10, tf.float32)[:, None] / 10
        z = tf.sin(a * 3)
        with tf.GradientTape() as g:
            l = self.compiled_loss_fn(z, self.n(tf.concat([a * (1 - t) + z * t, t], 1)))
        v = self.n.trainable_weights
        self.optimizer.apply_gradients(zip(g.gradient(l, v), v))
        for w, u in zip(self.n.weights, self.e.weights):
            u.assign(0.9 * u + 0.1 * w)
        return {"l": l}

    def compiled_loss_fn(self, a, b):
        return tf.reduce_mean(tf.abs(a - b))


m = D()
m(np.zeros((1, 9), "float32"))
m.compile(keras.optimizers.Adam(0.01))
h = m.fit(x[:300], batch_size=20, epochs=2, verbose=0)
done(m, None)
