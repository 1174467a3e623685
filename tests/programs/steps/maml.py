import keras
import numpy as np
import tensorflow as tf
from report import done

keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
x = rng.normal(size=(120, 4)).astype("float32")
y = (x @ rng.normal(size=(4, 1))).astype("float32")


class MAML(keras.Model):
    def __init__(self):
        super().__init__()
        self.w = self.add_weight(shape=(4, 1), name="w", initializer="glorot_uniform")
        self.b = self.add_weight(shape=(1,), name="b", initializer="zeros")

    def call(self, x):
        return tf.matmul(x, self.w) + self.b

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                l = tf.reduce_mean((self(x) - y) ** 2)
            gw, gb = inner.gradient(l, [self.w, self.b])
            w, b = self.w - 0.1 * gw, self.b - 0.1 * gb
            loss = tf.reduce_mean((tf.matmul(x, w) + b - y) ** 2)
        v = self.trainable_variables
        self.optimizer.apply_gradients(zip(outer.gradient(loss, v), v))
        return {"loss": loss}


m = MAML()
m(x[:1])
m.compile(keras.optimizers.SGD(0.1))
h = m.fit(x, y, batch_size=20, epochs=3, verbose=0)
done(m, h)
