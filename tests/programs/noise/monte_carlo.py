"""Dropout that is active in predict: several predictions and their spread."""

import numpy as np
import variants
from report import done


def make(keras):
    class Always(keras.layers.Dropout):
        def call(self, x, training=None):
            return super().call(x, training=True)

    layers = keras.layers
    stack = [keras.Input((8,)), layers.Dense(16, "tanh"), Always(0.4), layers.Dense(1)]
    return keras.Sequential(stack)


def data(rows):
    x = variants.images(rows).reshape(rows, -1)[:, :8]
    return x, variants.labels(x)


def guesses(model, x):
    found = np.stack([model.predict(x, batch_size=13, verbose=0) for _ in range(4)])
    called = np.asarray(model(x, training=True))
    return {"mean": found.mean(0), "spread": found.std(0), "called": called}


done(
    variants=variants.of(make, data, after=guesses),
    eager=variants.of(make, data, variants.EAGER, steps=10, after=guesses),
)
