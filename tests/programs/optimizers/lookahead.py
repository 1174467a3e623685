import keras
import numpy as np
from report import done

keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
x = rng.normal(size=(120, 6)).astype("float32")
y = np.abs(x[:, :1]).astype("float32")


class Lookahead(keras.optimizers.Optimizer):
    def __init__(self, inner, k=3, alpha=0.5):
        super().__init__(learning_rate=float(inner.learning_rate.numpy()), name="lookahead")
        self.inner, self.k, self.alpha = inner, k, alpha

    def build(self, variables):
        super().build(variables)
        self.inner.build(variables)
        self.slow = [self.add_variable_from_reference(v, name="slow") for v in variables]
        for s, v in zip(self.slow, variables):
            s.assign(v)

    def apply(self, grads, trainable_variables=None):
        grads = list(grads)
        if trainable_variables is not None and not self.built:
            self.build(list(trainable_variables))
        self.inner.apply(grads, trainable_variables)
        self.iterations.assign_add(1)
        sync = keras.ops.equal(self.iterations % self.k, 0)
        for s, v in zip(self.slow, self._trainable_variables):
            n = s + self.alpha * (v - s)
            v.assign(keras.ops.where(sync, n, v))
            s.assign(keras.ops.where(sync, n, s))

    def update_step(self, *a):
        pass


class Central(keras.optimizers.Adam):
    def update_step(self, g, v, lr):
        if len(g.shape) > 1:
            g = g - keras.ops.mean(g, axis=tuple(range(len(g.shape) - 1)), keepdims=True)
        norm = keras.ops.norm(g)
        g = g * keras.ops.minimum(
            1.0, 0.05 * keras.ops.maximum(keras.ops.norm(v), 1e-3) / (norm + 1e-6)
        )
        super().update_step(g, v, lr)


def make():
    return keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(12, "tanh"), keras.layers.Dense(1)]
    )


m = make()
m.compile(Lookahead(keras.optimizers.Adam(0.01)), "mse")
h = m.fit(x, y, batch_size=25, epochs=3, verbose=0)
m2 = make()
m2.compile(Central(0.01), "mse")
h2 = m2.fit(x, y, batch_size=25, epochs=3, verbose=0)
done(m, h, w2=m2.get_weights(), h2=h2.history)
