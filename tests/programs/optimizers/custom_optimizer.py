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


class Lion2(keras.optimizers.Optimizer):
    def __init__(self, lr=0.01, **k):
        super().__init__(learning_rate=lr, **k)

    def build(self, v):
        if self.built:
            return
        super().build(v)
        self.mm = [self.add_variable_from_reference(i, "m") for i in v]

    def update_step(self, g, v, lr):
        m = self.mm[self._get_variable_index(v)]
        self.assign_sub(v, lr * tf.sign(0.9 * m + 0.1 * g) * tf.minimum(1.0, tf.norm(g)))
        self.assign(m, 0.99 * m + 0.01 * g)

    def get_config(self):
        return super().get_config()


m = mlp()
m.compile(Lion2(), "mse")
h = m.fit(x, y, epochs=2, batch_size=31, verbose=0)
done(m, h)
