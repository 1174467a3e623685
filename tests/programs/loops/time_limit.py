import time

import keras
import numpy as np
from report import done

keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
x = rng.normal(size=(400, 6)).astype("float32")
y = (x[:, :1] > 0).astype("float32")


class TimeLimit(keras.callbacks.Callback):
    def __init__(self, s):
        super().__init__()
        self.s = s

    def on_train_begin(self, logs=None):
        self.t = time.time()

    def on_train_batch_end(self, batch, logs=None):
        if time.time() - self.t > self.s:
            self.model.stop_training = True


m = keras.Sequential(
    [keras.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1, "sigmoid")]
)
m.compile("adam", "binary_crossentropy")
h = m.fit(x, y, batch_size=20, epochs=100000, verbose=0, callbacks=[TimeLimit(2)])
n = int(m.optimizer.iterations)
a = m.predict(x, verbose=0)
m.save("limit.keras")
b = keras.models.load_model("limit.keras").predict(x, verbose=0)
done(
    None,
    None,
    some=n > 3,
    same=float(abs(a - b).max()),
    learned=bool(((a > 0.5) == (y > 0.5)).mean() > 0.4),
)
