import keras
import numpy as np
import tensorflow as tf
from report import done

keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
x = rng.normal(size=(96, 6)).astype("float32")
y = (x[:, :1] > 0).astype("float32")


class NoisyDense(keras.layers.Layer):
    def __init__(self, n, **k):
        super().__init__(**k)
        self.n = n
        self.gen = keras.random.SeedGenerator(4)

    def build(self, s):
        self.k = self.add_weight(shape=(s[-1], self.n), name="k")
        self.s = self.add_weight(
            shape=(s[-1], self.n), name="s", initializer=keras.initializers.Constant(0.1)
        )

    def call(self, x, training=False):
        w = (
            self.k + self.s * keras.random.normal(self.k.shape, seed=self.gen)
            if training
            else self.k
        )
        return keras.ops.matmul(x, w)


class M(keras.Sequential):
    def train_step(self, data):
        r = super().train_step(data)
        for i, v in enumerate(self.trainable_variables):
            v.assign_add(
                tf.random.stateless_normal(v.shape, [7, i]) * 1e-3
                + 1e-4 * keras.random.normal(v.shape)
            )
        return r


for kind in ({}, {"run_eagerly": True}):
    keras.utils.set_random_seed(3)
    m = M([keras.Input((6,)), NoisyDense(12), keras.layers.Activation("tanh"), NoisyDense(1)])
    m.compile(keras.optimizers.SGD(0.05), "mse", **kind)
    h = m.fit(x, y, batch_size=12, epochs=2, verbose=0, shuffle=False)
    if not kind:
        w = m.get_weights()
done(m, h, w=w)
