import json
import os
import pathlib

import h5py
import keras
import numpy as np
from report import done

keras.utils.set_random_seed(15)
rng = np.random.default_rng(8)
own = f"{os.getpid()}.part"
if not pathlib.Path("x.h5").exists():
    with h5py.File(own, "w") as file:
        file["x"] = rng.normal(size=(80, 4)).astype("float32")
    os.replace(own, "x.h5")
shape = (80, 1)
if not pathlib.Path("y.dat").exists():
    y = np.memmap(own, "float32", "w+", shape=shape)
    y[:] = np.linspace(0, 1, 80)[:, None]
    y.flush()
    os.replace(own, "y.dat")
file = h5py.File("x.h5", "r")
X, Y = file["x"][:], np.memmap("y.dat", "float32", "r", shape=shape)
m = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "relu"), keras.layers.Dense(1)])
m.compile("nadam", "mse")
h = m.fit(X, Y, batch_size=12, epochs=3, verbose=0, shuffle="batch")
m.save_weights("last.weights.h5")
with open("history.json", "w") as out:
    json.dump(h.history, out)
n = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "relu"), keras.layers.Dense(1)])
n.load_weights("last.weights.h5")
with open("history.json") as back:
    history = json.load(back)
done(n, h, again=history, p=n.predict(file["x"][:7], verbose=0))
