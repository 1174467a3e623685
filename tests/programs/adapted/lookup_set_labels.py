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


names = list({f"c{int(v * 7) % 5}" for v in y[:, 0]})
lab = {n: i for i, n in enumerate(names)}
ys = np.array([lab[f"c{int(v * 7) % 5}"] for v in y[:, 0]])
m = mlp(len(names), "softmax")
m.compile(keras.optimizers.SGD(0.2), "sparse_categorical_crossentropy", metrics=["accuracy"])
h = m.fit(x, ys, epochs=3, verbose=0)
done(None, None, acc=round(h.history["accuracy"][-1], 1))
