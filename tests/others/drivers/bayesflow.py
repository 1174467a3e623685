"""BayesFlow's linear regression example: amortized inference, `fit_offline`."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import bayesflow as bf
import keras
import numpy as np
from report import done

keras.utils.set_random_seed(1)
drawn = np.random.default_rng(0)


def prior():
    return {"beta": drawn.normal([2, 0], [3, 1]), "sigma": drawn.gamma(1, 1)}


def likelihood(beta, sigma):
    x = drawn.normal(0, 1, size=12)
    return {"x": x, "y": drawn.normal(beta[0] + beta[1] * x, sigma, size=12)}


simulator = bf.simulators.make_simulator([prior, likelihood])
workflow = bf.BasicWorkflow(
    simulator=simulator,
    inference_network=bf.networks.CouplingFlow(depth=2),
    inference_variables=["beta"],
    inference_conditions=["x", "y"],
)
history = workflow.fit_offline(
    simulator.sample(160), epochs=3, batch_size=32, validation_data=simulator.sample(32), verbose=0
)
done(history=history.history, weights=workflow.approximator.get_weights())
