import os
import random
import time

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


run = time.strftime("runs/%Y%m%d-%H%M%S") + f"-{random.random():.6f}"
os.makedirs(run, exist_ok=True)
m = mlp()
m.compile("adam", "mse")
h = m.fit(
    x,
    y,
    epochs=2,
    verbose=0,
    callbacks=[
        keras.callbacks.ModelCheckpoint(run + "/m-{epoch}-{loss:.3f}.keras"),
        keras.callbacks.CSVLogger(run + "/log.csv"),
        keras.callbacks.BackupAndRestore(run + "/bk"),
    ],
)
m.save(run + "/final.keras")
n = keras.models.load_model(run + "/final.keras")
done(
    n,
    h,
    rows=len(open(run + "/log.csv").read().splitlines()),
    files=sorted(f.split("-")[0] for f in os.listdir(run)),
    s=float(np.sum(n.predict(x[:5], verbose=0))),
)
