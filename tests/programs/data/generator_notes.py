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


seen = []


def gen():
    while True:
        i = np.random.randint(0, 310, 20)
        seen.append(int(i[0]))
        yield x[i], y[i]


m = mlp()
m.compile("sgd", "mse")
h = m.fit(gen(), steps_per_epoch=6, epochs=2, verbose=0)
labels = []


def pg():
    for i in range(5):
        labels.append(yc[i * 10 : i * 10 + 10])
        yield (x[i * 10 : i * 10 + 10],)


p = m.predict(pg(), steps=5, verbose=0)
done(
    m, h, n=seen[:10], acc=float(((p[:, 0] > 0).astype(int) == np.concatenate(labels)[:50]).mean())
)
