import keras
import numpy as np
import tensorflow as tf
from report import done

keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
with open("data.csv", "w") as f:
    f.write("a,b,c,label\n")
    for r in rng.normal(size=(30000, 3)):
        f.write(",".join(f"{v:.4f}" for v in r) + f",{int(r[0] > 0)}\n")
ds = (
    tf.data.experimental.CsvDataset("data.csv", [0.0, 0.0, 0.0, 0], header=True)
    .map(lambda a, b, c, l: (tf.stack([a, b, c]), l))
    .batch(1000)
)
n = sum(1 for _ in ds)
m = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, "sigmoid")])
m.compile("sgd", "binary_crossentropy")
h = m.fit(ds, epochs=2, verbose=0)
rows = np.genfromtxt("data.csv", delimiter=",", skip_header=1)
done(m, h, n=n, rows=len(rows), s=float(rows.sum()))
