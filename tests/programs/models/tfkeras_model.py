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


import tf_keras as tk

tk.utils.set_random_seed(2)
m = tk.Sequential([tk.layers.Dense(9, "relu"), tk.layers.Dropout(0.0), tk.layers.Dense(1)])
m.compile(tk.optimizers.Adam(0.01), "mse", metrics=["mae", tk.metrics.RootMeanSquaredError()])
h = m.fit(
    x,
    y,
    batch_size=30,
    epochs=3,
    verbose=0,
    validation_split=0.2,
    callbacks=[
        tk.callbacks.ModelCheckpoint("best.h5", save_best_only=True),
        tk.callbacks.EarlyStopping(patience=2),
    ],
)
m.load_weights("best.h5")
done(m, h, ev=m.evaluate(x, y, verbose=0))
