"""The 1D Poisson equation with Dirichlet conditions from DeepXDE's documentation; compat.v1."""

from __future__ import annotations

import os

os.environ.setdefault("DDE_BACKEND", "tensorflow.compat.v1")

import deepxde as dde
import keras
import numpy as np
from report import done

dde.config.set_random_seed(1)
dde.config.disable_xla_jit()  # as on ranks: XLA draws other numbers for the initial weights


def equation(x, y):
    dy_xx = dde.grad.hessian(y, x)
    return -dy_xx - np.pi**2 * dde.backend.sin(np.pi * x)


def boundary(x, on_boundary):
    return on_boundary


geometry = dde.geometry.Interval(-1, 1)
condition = dde.icbc.DirichletBC(geometry, lambda x: np.sin(np.pi * x), boundary)
data = dde.data.PDE(
    geometry,
    equation,
    condition,
    16,
    2,
    train_distribution="pseudo",  # which its Horovod path requires
    solution=lambda x: np.sin(np.pi * x),
    num_test=100,
)
# DeepXDE seeded "Glorot uniform" on import, with another number in each process.
first = keras.initializers.GlorotUniform(seed=1)
network = dde.nn.FNN([1] + [20] * 3 + [1], "tanh", first)
model = dde.Model(data, network)
model.compile("adam", lr=0.001, metrics=["l2 relative error"])
history, state = model.train(iterations=300, display_every=100)
x = geometry.uniform_points(50, True)
done(errors=history.metrics_test, predicted=model.predict(x))
