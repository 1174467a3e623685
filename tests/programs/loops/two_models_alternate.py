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


a, b = mlp(), mlp()
a.compile("adam", "mse")
b.compile("rmsprop", "mae")
out = []
for _e in range(3):
    out.append(a.fit(x, y, epochs=1, verbose=0).history["loss"][0])
    out.append(
        b.fit(x, a.predict(x, verbose=0), epochs=1, verbose=0, batch_size=50).history["loss"][0]
    )
done(b, None, out=out, w=a.get_weights()[0])
