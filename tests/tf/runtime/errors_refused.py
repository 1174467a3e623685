"""Everything that this release refuses, one case after another.

Prints by case "ok" if the variable was trained, "untrained", or the error's type and text.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from common import place, result

v1 = tf.compat.v1
Optimizer: Any = v1.train.Optimizer
GradientDescent: Any = v1.train.GradientDescentOptimizer
raw = tf.raw_ops
RANK, SIZE = place()
SLICES = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), tf.constant([4, 2]))
CASES: dict[str, Callable[[], Any]] = {}


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    """A case trains a variable, initially ones, in its own graph, and returns the new value."""
    CASES[function.__name__] = function
    return function


def ones(name: str, shape: tuple[int, ...] = (4, 2), dtype: Any = tf.float32) -> tf.Variable:
    return tf.Variable(tf.ones(shape, dtype), name=name)


def gradient(shape: tuple[int, ...] = (4, 2)) -> Any:
    return tf.fill(shape, RANK + 1.0)


# --- Sparse gradients ----------------------------------------------------------------------------


def apply_rows(variable: Any, slot: Any) -> None:
    raw.ResourceSparseApplyAdagradV2(
        var=variable.handle,
        accum=slot.handle,
        lr=0.1,
        epsilon=1e-7,
        grad=SLICES.values,
        indices=SLICES.indices,
    )


@case
def sparse_op_eager() -> Any:
    variable, slot = ones("se"), ones("se_slot")
    apply_rows(variable, slot)
    return variable.numpy()


@case
def sparse_op_function() -> Any:
    variable, slot = ones("sf"), ones("sf_slot")
    tf.function(lambda: apply_rows(variable, slot))()
    return variable.numpy()


@case
def sparse_op_session() -> Any:
    with tf.Graph().as_default(), v1.Session() as session:
        ref = {
            name: v1.get_variable(name, initializer=np.ones([4, 2], "f"), use_resource=False)
            for name in ("ss", "ss_slot")
        }
        train = raw.SparseApplyMomentum(
            var=ref["ss"]._ref(),
            accum=ref["ss_slot"]._ref(),
            lr=0.1,
            grad=tf.ones([1, 2]),
            indices=[1],
            momentum=0.9,
        )
        session.run(v1.global_variables_initializer())
        return session.run(train)


@case
def sparse_optimizer_eager() -> Any:
    """It would scatter, without any Apply op."""
    variable = ones("soe")
    v1.train.GradientDescentOptimizer(0.1).apply_gradients([(SLICES, variable)])
    return variable.numpy()


@case
def sparse_optimizer_session() -> Any:
    with tf.Graph().as_default(), v1.Session() as session:
        variable = v1.get_variable("sos", initializer=np.ones([4, 2], "f"), use_resource=False)
        loss = tf.reduce_sum(tf.gather(variable, [1]) ** 2)
        train = v1.train.AdagradOptimizer(0.1).minimize(loss)
        session.run(v1.global_variables_initializer())
        session.run(train)
        return session.run(variable)


# --- Compiled functions --------------------------------------------------------------------------


@case
def compiled_op() -> Any:
    variable = ones("co")

    @tf.function(jit_compile=True)
    def step(delta: Any) -> None:
        raw.ResourceApplyGradientDescent(var=variable.handle, alpha=0.1, delta=delta)

    step(gradient())
    return variable.numpy()


@case
def compiled_optimizer_inside_a_function() -> Any:
    variable, optimizer = ones("cf"), v1.train.AdamOptimizer(0.1)

    @tf.function(jit_compile=True)
    def inner(delta: Any) -> None:
        optimizer.apply_gradients([(delta, variable)])

    tf.function(lambda: inner(gradient()))()
    return variable.numpy()


# --- Custom compat.v1 optimizers
# -------------------------------------------------------------------


class AssignsOne(Optimizer):
    """The stock apply_gradients averages for it."""

    def __init__(self) -> None:
        super().__init__(use_locking=False, name="AssignsOne")

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        return v1.assign_sub(var, 0.1 * grad)

    def _resource_apply_dense(self, grad: Any, handle: Any) -> Any:
        return raw.AssignSubVariableOp(resource=handle.handle, value=0.1 * grad)


class AssignsAll(Optimizer):
    def __init__(self) -> None:
        super().__init__(use_locking=False, name="AssignsAll")

    def apply_gradients(self, grads_and_vars: Any, *_: Any) -> Any:
        return tf.group(*(variable.assign_sub(0.1 * grad) for grad, variable in grads_and_vars))


class Wraps(GradientDescent):
    """Does its own work and then calls the stock one, so it is not refused."""

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        halved = [(0.5 * grad, variable) for grad, variable in grads_and_vars]
        return super().apply_gradients(halved, *args, **kwargs)


def custom(optimizer: Any, mode: str) -> Any:
    if mode == "session":
        with tf.Graph().as_default(), v1.Session() as session:
            variable = v1.get_variable("c", initializer=np.ones([4, 2], "f"), use_resource=False)
            train = optimizer.apply_gradients([(gradient(), variable)])
            session.run(v1.global_variables_initializer())
            session.run(train)
            return session.run(variable)
    variable = ones(f"{type(optimizer).__name__}_{mode}")

    def step() -> None:
        optimizer.apply_gradients([(gradient(), variable)])

    (tf.function(step) if mode == "function" else step)()
    return variable.numpy()


MODES = ("eager", "function", "session")
MAKERS: dict[str, Callable[[], Any]] = {
    "AssignsOne": AssignsOne,
    "AssignsAll": AssignsAll,
    "Wraps": lambda: Wraps(0.1),
}
for _name, _make in MAKERS.items():
    for _mode in MODES:
        CASES[f"{_name} {_mode}"] = functools.partial(
            lambda make, m: custom(make(), m), _make, _mode
        )


# --- Ranks that disagree and then agree again -----------------------------------------------------


def descend(variable: Any, delta: Any) -> Any:
    alpha = tf.constant(0.1, variable.dtype)
    raw.ResourceApplyGradientDescent(var=variable.handle, alpha=alpha, delta=delta)
    return variable.numpy()


@case
def other_shape() -> Any:
    shape = (2 + RANK, 3)
    return descend(ones("other_shape", shape), gradient(shape))


@case
def other_dtype() -> Any:
    dtype = tf.float64 if RANK else tf.float32
    return descend(ones("other_dtype", (2,), dtype), tf.ones([2], dtype))


@case
def other_slot() -> Any:
    variable, slot = ones("other_slot"), ones("its_slot", (4 + RANK, 2))
    raw.ResourceApplyMomentum(
        var=variable.handle, accum=slot.handle, lr=0.1, grad=gradient(), momentum=0.9
    )
    return variable.numpy()


@case
def agreed() -> Any:
    return descend(ones("agreed"), gradient())


def outcome(function: Callable[[], Any]) -> str:
    try:
        value = function()
    except Exception as error:  # the test checks its type and message
        return f"{type(error).__name__}: {error}"
    return "untrained" if np.all(value == 1) else "ok"


def main() -> None:
    outcomes = {name: outcome(function) for name, function in CASES.items()}
    assigned = [float(custom(AssignsOne(), mode)[0, 0]) for mode in MODES]
    result(outcomes | {"value": float(agreed()[0, 0]), "assigned": assigned})


main()
