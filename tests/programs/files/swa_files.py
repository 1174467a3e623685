import glob
import os

import keras
import numpy as np
from report import done

keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
x = rng.normal(size=(128, 6)).astype("float32")
y = np.sin(x[:, :1] * 2).astype("float32")


class SWA(keras.callbacks.Callback):
    def __init__(self, start):
        super().__init__()
        self.start, self.files = start, []

    def on_epoch_end(self, epoch, logs=None):
        if epoch >= self.start:
            f = f"swa/{epoch:02d}-{logs['val_loss']:.5f}.weights.h5"
            os.makedirs("swa", exist_ok=True)
            self.model.save_weights(f)
            self.files.append(f)

    def on_train_end(self, logs=None):
        acc = None
        for n, f in enumerate(self.files):
            self.model.load_weights(f)
            w = self.model.get_weights()
            acc = w if acc is None else [a * n / (n + 1) + b / (n + 1) for a, b in zip(acc, w)]
        self.model.set_weights(acc)


class Cyclic(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        self.model.optimizer.learning_rate = 0.02 * (1 + (batch % 4)) / 4


m = keras.Sequential([keras.Input((6,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
m.compile(keras.optimizers.SGD(0.02, momentum=0.9), "mse")
swa = SWA(2)
h = m.fit(
    x, y, batch_size=16, epochs=6, verbose=0, validation_split=0.25, callbacks=[swa, Cyclic()]
)
done(
    m,
    h,
    files=len(swa.files),
    listed=sorted(len(glob.glob("swa/*")) for _ in range(1)),
    ev=m.evaluate(x, y, verbose=0),
)
