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


o = keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9)
m = mlp()
m.compile(o, "mse")
h = m.fit(
    x,
    y,
    epochs=2,
    verbose=0,
    validation_data=(x[:40], y[:40]),
    callbacks=[keras.callbacks.SwapEMAWeights(swap_on_epoch=True)],
)
done(m, h)
