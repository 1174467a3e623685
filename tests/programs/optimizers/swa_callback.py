import keras
import numpy as np
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


class SWA(keras.callbacks.Callback):
    s = None
    n = 0

    def on_epoch_end(self, e, logs=None):
        w = self.model.get_weights()
        self.n += 1
        self.s = (
            w if self.s is None else [(a * (self.n - 1) + b) / self.n for a, b in zip(self.s, w)]
        )

    def on_train_end(self, logs=None):
        self.model.set_weights(self.s)


m = mlp()
m.compile(keras.optimizers.Adam(0.01), "mse")
h = m.fit(
    x,
    y,
    epochs=3,
    verbose=0,
    callbacks=[SWA(), keras.callbacks.LearningRateScheduler(lambda e, lr: lr * 0.9)],
)
done(m, h)
