"""Updates that bypass averaging, on two ranks: prints the outcome of two steps by case.

Each rank derives its own data from the launcher's number, without calling tf.mpi.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from common import result

OWN = "same" not in sys.argv[1:]
RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0)) if OWN else 0
X = np.random.default_rng(RANK).normal(size=(8, 3)).astype("f")


def gradient_of(variable: Any) -> Any:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((X @ variable - 1) ** 2)
    return tape.gradient(loss, variable)


def new_variable(name: str) -> Any:
    return tf.Variable(tf.ones([3, 1]), name=name)


def eager() -> Callable[[], Any]:
    variable = new_variable("eager")
    return lambda: variable.assign_sub(0.1 * gradient_of(variable))


def adversarial() -> Callable[[], Any]:
    """Updates two variables in turns; only the second one's gradients differ by rank."""
    first, second = new_variable("first"), new_variable("second")

    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(first**2)
        first.assign_sub(0.1 * tape.gradient(loss, first))
        second.assign_sub(0.1 * gradient_of(second))

    return step


def idle() -> Callable[[], Any]:
    """Rank 1's updates are zero."""
    variable = new_variable("idle")
    rate = 0.0 if RANK == 1 else 0.1
    return lambda: variable.assign_sub(rate * gradient_of(variable))


def accumulated() -> Callable[[], Any]:
    variable = new_variable("accumulated")
    return lambda: variable.assign_sub(0.1 * (gradient_of(variable) + gradient_of(variable)))


def assigned_in_a_function() -> Callable[[], Any]:
    """The origin of the assigned tensor is not visible."""
    variable = new_variable("assigned")

    @tf.function
    def assign(gradient: Any) -> None:
        variable.assign_sub(0.1 * gradient)

    return lambda: assign(gradient_of(variable))


def own_noise() -> Callable[[], Any]:
    """An average, combined with noise that each rank draws itself."""
    variable = new_variable("noise")
    generator = tf.random.Generator.from_seed(RANK)

    @tf.function
    def step() -> None:
        gradient = gradient_of(variable) + generator.normal([3, 1])
        variable.assign_sub(0.1 * gradient)

    return step


def outcome(case: Callable[[], Callable[[], Any]]) -> str:
    step = case()
    try:
        for _ in range(3):
            step()
    except RuntimeError as error:
        return str(error)
    return "alike"


cases = [eager, adversarial, idle, accumulated, assigned_in_a_function, own_noise]
result({"outcome": outcome({case.__name__: case for case in cases}[sys.argv[1]])})
