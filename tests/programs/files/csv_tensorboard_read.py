import csv
import glob

import keras
import numpy as np
import tensorflow as tf
from report import done

keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
x = rng.normal(size=(128, 6)).astype("float32")
y = np.sin(x[:, :1] * 2).astype("float32")
m = keras.Sequential([keras.Input((6,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
m.compile(keras.optimizers.SGD(0.02, momentum=0.9), "mse", metrics=["mae"])
rows = []
for i in range(3):
    m.fit(
        x,
        y,
        batch_size=16,
        epochs=2,
        verbose=0,
        validation_split=0.25,
        callbacks=[
            keras.callbacks.CSVLogger("log.csv", append=i > 0),
            keras.callbacks.TensorBoard(
                f"tb/{i}", histogram_freq=1, write_graph=False, update_freq="epoch"
            ),
        ],
    )
    with open("log.csv") as f:
        rows.append([[float(v) for v in r.values()] for r in csv.DictReader(f)])
events = sorted(glob.glob("tb/*/train/*.tfevents*"))
n = []
for e in events:
    n.append(sum(1 for _ in tf.compat.v1.train.summary_iterator(e)))
done(m, None, rows=rows, n=n)
