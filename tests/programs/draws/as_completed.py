import os
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

import keras
import numpy as np
from report import done

rng = np.random.default_rng(0)
os.makedirs("d", exist_ok=True)
keras.utils.set_random_seed(3)
for i in range(12):
    np.save(f"d/{i}.npy", np.full((8, 4), i, "float32"))


def load(i):
    time.sleep(0.002 * ((i * 7 + os.getpid()) % 5))
    return i, np.load(f"d/{i}.npy")


with ThreadPoolExecutor(4) as pool:
    parts = [f.result() for f in as_completed([pool.submit(load, i) for i in range(12)])]
x = np.concatenate([p for _, p in parts])
y = np.concatenate([np.full((8, 1), i % 2, "float32") for i, _ in parts])
m = keras.Sequential(
    [keras.Input((4,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
)
m.compile(keras.optimizers.SGD(0.0), "mse", metrics=["mae"])
h = m.fit(x, y, batch_size=96, epochs=2, verbose=0)
p = m.predict(x, verbose=0)
e = m.evaluate(x, y, verbose=0)
done(m, h, e=e, s=float(x.sum()), n=len(p))
