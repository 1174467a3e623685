import time

import keras
import numpy as np
from report import done

keras.utils.set_random_seed(3)
rng = np.random.default_rng(0)
counter = []
X = rng.normal(size=(400, 6)).astype("float32")


def gen():
    i = 0
    while True:
        j = (np.arange(17) + i * 17) % 400
        counter.append(i)
        i += 1
        yield X[j], (X[j, :1] > 0).astype("float32")


class Slow(keras.callbacks.Callback):
    """Steps of some milliseconds: after faster ones Keras may ask for one batch more, or not."""

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.01)

    on_test_batch_end = on_predict_batch_end = on_train_batch_end


g = gen()
m = keras.Sequential(
    [keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1, "sigmoid")]
)
m.compile("adam", "binary_crossentropy", metrics=["accuracy"])
h = m.fit(g, steps_per_epoch=5, epochs=2, verbose=0, callbacks=[Slow()])
n1 = len(counter)
xb, yb = next(g)
t = m.train_on_batch(xb, yb)
h2 = m.fit(
    g,
    steps_per_epoch=3,
    epochs=2,
    verbose=0,
    callbacks=[Slow()],
    validation_data=gen(),
    validation_steps=2,
    validation_freq=2,
)
e = m.evaluate(g, steps=3, verbose=0, callbacks=[Slow()])
p = m.predict(((x,) for x, _ in gen()), steps=2, verbose=0, callbacks=[Slow()])
done(m, h, n1=n1, n=len(counter), h2=h2.history, e=e, p=p, t=t)
