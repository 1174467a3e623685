"""OmniFold's README: unfolding of two Gaussians by classifiers."""

from __future__ import annotations

import keras
import numpy as np
import omnifold.net
from omnifold import MLP, DataLoader, MultiFold
from report import done

# Keras 3.13 and newer cannot clone a compiled model whose loss is a function unknown to Keras.
keras.saving.get_custom_objects()["weighted_binary_crossentropy"] = (
    omnifold.net.weighted_binary_crossentropy
)
keras.utils.set_random_seed(1)
drawn = np.random.default_rng(0)
truth = drawn.normal(0.2, 0.8, (600, 1)).astype(np.float32)
simulated = drawn.normal(0, 1, (600, 1)).astype(np.float32)
smeared = drawn.normal(0, 0.5, (600, 1)).astype(np.float32)
data = DataLoader(reco=truth + smeared, normalize=True)
simulation = DataLoader(reco=simulated + smeared, gen=simulated, normalize=True)
unfold = MultiFold(
    "gauss", MLP(1), MLP(1), data, simulation, niter=1, epochs=2, batch_size=128, verbose=False
)
unfold.Unfold()
done(weights=unfold.reweight(simulated, unfold.model2))
