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


class A(keras.Model):
    def __init__(self):
        super().__init__()
        self.n = mlp()
        self.k = self.add_weight(
            shape=(), dtype="int32", initializer="zeros", trainable=False, name="k"
        )
        self.acc = [
            self.add_weight(shape=v.shape, initializer="zeros", trainable=False, name=f"acc{i}")
            for i, v in enumerate(self.n.trainable_variables)
        ]

    def call(self, a):
        return self.n(a)

    def train_step(self, d):
        a, b = d
        with tf.GradientTape() as t:
            loss = self.compute_loss(a, b, self.n(a))
        for q, g in zip(self.acc, t.gradient(loss, self.n.trainable_variables)):
            q.assign_add(g)
        self.k.assign_add(1)

        def go():
            self.optimizer.apply_gradients(
                [(q / 3.0, v) for q, v in zip(self.acc, self.n.trainable_variables)]
            )
            for q in self.acc:
                q.assign(tf.zeros_like(q))
            return tf.constant(0)

        tf.cond(tf.equal(self.k % 3, 0), go, lambda: tf.constant(0))
        return {"loss": loss}


m = A()
m(x[:1])
m.compile(keras.optimizers.SGD(0.1), "mse")
m.optimizer.build(m.n.trainable_variables)
h = m.fit(x, y, batch_size=25, epochs=3, verbose=0)
done(m, h)
