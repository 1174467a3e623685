import os

import keras
import numpy as np
from report import done

keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
x = rng.normal(size=(120, 8)).astype("float32")
y = (x[:, :1] * x[:, 1:2]).astype("float32")


def make():
    m = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)])
    m.compile(keras.optimizers.Adam(0.01), "mse")
    return m


class Preempted(Exception):
    pass


class Interrupt(keras.callbacks.Callback):
    def __init__(self, epoch, batch):
        super().__init__()
        self.at = (epoch, batch)
        self.seen = []

    def on_epoch_begin(self, epoch, logs=None):
        self.e = epoch
        self.seen.append(epoch)

    def on_train_batch_end(self, batch, logs=None):
        if (self.e, batch) == self.at:
            raise Preempted()


seen = []
for at in ((2, 1), (4, 3), (99, 0)):
    m = make()
    cb = Interrupt(*at)
    try:
        h = m.fit(
            x,
            y,
            batch_size=16,
            epochs=7,
            verbose=0,
            shuffle=False,
            callbacks=[keras.callbacks.BackupAndRestore("backup", save_freq="epoch"), cb],
        )
    except Preempted:
        pass
    seen.append(cb.seen)
m2 = make()
cb = Interrupt(1, 5)
try:
    m2.fit(
        x,
        y,
        batch_size=16,
        epochs=3,
        verbose=0,
        shuffle=False,
        callbacks=[
            keras.callbacks.BackupAndRestore("backup2", save_freq=3, delete_checkpoint=False),
            cb,
        ],
    )
except Preempted:
    pass
m3 = make()
h3 = m3.fit(
    x,
    y,
    batch_size=16,
    epochs=3,
    verbose=0,
    shuffle=False,
    callbacks=[keras.callbacks.BackupAndRestore("backup2", save_freq=3, delete_checkpoint=False)],
)
done(m, h, seen=seen, w3=m3.get_weights(), left=os.path.exists("backup"))
