import keras
import numpy as np
from report import done

keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
x = rng.normal(size=(256, 8)).astype("float32")
y = (x @ rng.normal(size=(8, 1))).astype("float32")


class Finder(keras.callbacks.Callback):
    def __init__(self, lo, hi, steps):
        super().__init__()
        self.lo, self.k = lo, (hi / lo) ** (1 / steps)
        self.lrs, self.losses, self.best, self.avg = [], [], 1e9, 0

    def on_train_begin(self, logs=None):
        self.saved = self.model.get_weights()
        self.model.optimizer.learning_rate.assign(self.lo)

    def on_train_batch_end(self, batch, logs=None):
        lr = float(self.model.optimizer.learning_rate.numpy())
        n = len(self.lrs) + 1
        self.avg = 0.9 * self.avg + 0.1 * logs["loss"]
        s = self.avg / (1 - 0.9**n)
        self.lrs.append(lr)
        self.losses.append(s)
        if s > 4 * self.best:
            self.model.stop_training = True
            return
        self.best = min(self.best, s)
        self.model.optimizer.learning_rate.assign(lr * self.k)

    def on_train_end(self, logs=None):
        self.model.set_weights(self.saved)


m = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)])
m.compile(keras.optimizers.SGD(1e-3), "mse")
f = Finder(1e-4, 100.0, 60)
m.fit(x, y, batch_size=16, epochs=10, verbose=0, callbacks=[f])
lr = f.lrs[int(np.argmin(f.losses))] / 10
m.optimizer.learning_rate = lr
h = m.fit(x, y, batch_size=16, epochs=2, verbose=0)
done(m, h, n=len(f.lrs), lr=lr, losses=f.losses)
