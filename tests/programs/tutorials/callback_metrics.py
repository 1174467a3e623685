import json

import keras
import numpy as np
from report import done

keras.utils.set_random_seed(25)


class PerEpoch(keras.callbacks.Callback):
    def __init__(self, x, y):
        super().__init__()
        self.x, self.y, self.log, self.batches = x, y, [], 0

    def on_train_begin(self, logs=None):
        self.losses = []

    def on_train_batch_begin(self, b, logs=None):
        self.batches += 1

    def on_train_batch_end(self, b, logs=None):
        self.losses.append(logs["loss"])

    def on_epoch_end(self, e, logs=None):
        p = self.model.predict(self.x, verbose=0)
        logs["own"] = float(np.abs(p - self.y).mean())
        self.log.append({"epoch": e, **{k: float(v) for k, v in logs.items()}})
        with open(f"epoch{e}.json", "w") as f:
            json.dump(self.log, f)
        if e == 1:
            self.model.optimizer.learning_rate = 0.001
        w = self.model.layers[-1].get_weights()
        self.model.layers[-1].set_weights([np.clip(w[0], -0.5, 0.5), w[1]])


rng = np.random.default_rng(0)
x = rng.normal(size=(140, 4)).astype("float32")
y = x[:, :1] * 2
cb = PerEpoch(x[:50], y[:50])
m = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
m.compile("adam", "mse", metrics=["mae"])
h = m.fit(
    x,
    y,
    batch_size=32,
    epochs=3,
    callbacks=[
        cb,
        keras.callbacks.EarlyStopping("own", patience=2, mode="min"),
        keras.callbacks.CSVLogger("log.csv"),
        keras.callbacks.LambdaCallback(on_epoch_end=lambda e, l: None),
    ],
    validation_split=0.25,
    verbose=0,
)
done(
    m,
    h,
    log=[list(v.values()) for v in cb.log],
    n=cb.batches,
    losses=cb.losses,
    j=len(json.load(open("epoch2.json"))),
    rows=len(open("log.csv").readlines()),
)
