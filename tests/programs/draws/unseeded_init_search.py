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


best = None
hist = []
r = np.random.default_rng(7)
for _t in range(3):
    lr = 10 ** r.uniform(-3, -1)
    units = int(r.integers(4, 12))
    act = r.choice(["tanh", "relu"])
    m = keras.Sequential([keras.Input((8,)), keras.layers.Dense(units, act), keras.layers.Dense(1)])
    m.compile(keras.optimizers.Adam(lr), "mse")
    h = m.fit(x, y, validation_split=0.2, epochs=2, verbose=0)
    v = h.history["val_loss"][-1]
    hist.append([units, v])
    if best is None or v < best[0]:
        best = (v, m)
done(best[1], None, hist=hist)
