import keras
import numpy as np
from report import done

keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
x = rng.normal(size=(96, 5)).astype("float32")
y = x.sum(1, keepdims=True).astype("float32")


class ScaleNoise(keras.layers.Layer):
    """One scale for a batch; one noise for each feature, not for each sample."""

    def __init__(self, **k):
        super().__init__(**k)
        self.gen = keras.random.SeedGenerator(11)

    def call(self, x, training=False):
        if not training:
            return x
        s = keras.random.uniform((), 0.5, 1.5, seed=self.gen)
        f = keras.random.normal((keras.ops.shape(x)[-1],), 0.0, 0.1, seed=self.gen)
        return x * s + f


m = keras.Sequential(
    [
        keras.Input((5,)),
        ScaleNoise(),
        keras.layers.Dense(4, "tanh"),
        ScaleNoise(),
        keras.layers.Dense(1),
    ]
)
m.compile(keras.optimizers.SGD(0.05), "mse")
h = m.fit(x, y, batch_size=24, epochs=3, verbose=0, shuffle=False)
done(m, h)
