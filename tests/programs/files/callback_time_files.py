import os
import time

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


class S(keras.callbacks.Callback):
    def on_epoch_end(self, e, logs=None):
        np.save(f"w_{e}_{logs['loss']:.4f}.npy", self.model.get_weights()[0])
        self.model.save_weights(f"ck_{time.time_ns()}_{e}.weights.h5")


m = mlp()
m.compile("sgd", "mse")
h = m.fit(
    x,
    y,
    epochs=2,
    verbose=0,
    callbacks=[
        S(),
        keras.callbacks.TensorBoard(f"tb/{time.time_ns()}"),
        keras.callbacks.TerminateOnNaN(),
    ],
)
done(m, h, n=sorted(f[:2] for f in os.listdir(".") if f.startswith(("w_", "ck_"))))
