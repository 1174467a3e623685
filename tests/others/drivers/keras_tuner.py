"""KerasTuner's guide: a search over units and rates, then the best model on all data."""

from __future__ import annotations

import keras
import keras_tuner
import numpy as np
from report import done

keras.utils.set_random_seed(1)
drawn = np.random.default_rng(0)
x = drawn.normal(size=(256, 8)).astype(np.float32)
y = (x @ drawn.normal(size=(8, 1)) > 0).astype(np.float32)


def build(hp):
    model = keras.Sequential([keras.Input((8,))])
    model.add(keras.layers.Dense(hp.Int("units", 8, 32, step=8), "relu"))
    if hp.Boolean("dropout"):
        model.add(keras.layers.Dropout(0.25))
    model.add(keras.layers.Dense(1, "sigmoid"))
    rate = hp.Float("rate", 1e-3, 1e-1, sampling="log")
    model.compile(keras.optimizers.Adam(rate), "binary_crossentropy", metrics=["accuracy"])
    return model


tuner = keras_tuner.RandomSearch(
    build, objective="val_loss", max_trials=3, seed=1, overwrite=True, directory="search"
)
tuner.search(x[:192], y[:192], epochs=2, validation_data=(x[192:], y[192:]), verbose=0)
best = tuner.get_best_hyperparameters()[0]
model = tuner.hypermodel.build(best)
history = model.fit(x, y, epochs=2, verbose=0)
done(
    best=best.values,
    scores=[trial.score for trial in tuner.oracle.get_best_trials(3)],
    history=history.history,
    weights=model.get_weights(),
)
