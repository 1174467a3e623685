"""compat.v1 optimizers through compute_gradients: prints variables and counts by case.

Arguments: names of cases, default all.

Each rank has its part of every batch; as a plain process it is the reference, on the whole batch.
With TEST_UNSYNCHRONISED ranks take their part and average nothing: the control.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from common import compiles, encode, place, result, single_threaded_ops
from tensorflow.mpi._src.runtime import c_api, hooks

v1 = tf.compat.v1
Optimizer: Any = v1.train.Optimizer
STEPS, BATCH, POISONED = 12, 12, 5
RANK, SIZE = place()
RANDOM = np.random.default_rng(7)
X, Y = RANDOM.normal(size=(STEPS, BATCH, 4)), RANDOM.normal(size=(STEPS, BATCH, 3))
SHAPES = {"w": (4, 5), "b": (5,), "u": (5, 3)}
CASES: dict[str, Callable[[], Any]] = {}


def part(step: int, poison: bool) -> tuple[Any, Any]:
    """This process's samples. If poisoned, the last of the whole batch is inf, and all is
    float32."""
    own = slice(RANK * BATCH // SIZE, (RANK + 1) * BATCH // SIZE)
    x, y = X[step][own], Y[step][own]
    if poison and step == POISONED and RANK == SIZE - 1:
        x = np.concatenate([x[:-1], np.full_like(x[-1:], np.inf)])
    return (x.astype("f"), y.astype("f")) if poison else (x, y)


def initial(name: str, dtype: Any, same: bool = False) -> Any:
    """Initial values that differ by rank, where rank 0's must count, or the `same` on all."""
    random = np.random.default_rng([0 if same else RANK, ord(name)])
    return random.normal(size=SHAPES[name]).astype(dtype)


def loss_of(variables: list[Any], x: Any, y: Any) -> Any:
    w, b, u = variables
    return tf.reduce_mean((tf.tanh(x @ w + b) @ u - y) ** 2)


def clip(pairs: Any) -> Any:
    gradients, variables = zip(*pairs)
    clipped, _ = tf.clip_by_global_norm(gradients, 0.3)
    return zip(clipped, variables)


class Assigns(Optimizer):
    """A custom optimizer without an Apply op."""

    def __init__(self) -> None:
        super().__init__(use_locking=False, name="Assigns")

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        return v1.assign_sub(var, 0.1 * grad)

    def _resource_apply_dense(self, grad: Any, handle: Any) -> Any:
        return tf.raw_ops.AssignSubVariableOp(resource=handle.handle, value=0.1 * grad)


def adam() -> Any:
    return v1.train.AdamOptimizer(0.02)


def scaled() -> Any:
    scale = v1.mixed_precision.DynamicLossScale(initial_loss_scale=64.0, increment_period=4)
    return v1.mixed_precision.MixedPrecisionLossScaleOptimizer(adam(), scale)


def clipped(optimizer: Any, loss: Any, **arguments: Any) -> Any:
    pairs = optimizer.compute_gradients(loss, arguments.pop("var_list", None))
    return optimizer.apply_gradients(clip(pairs), **arguments)


def minimized(optimizer: Any, loss: Any, **arguments: Any) -> Any:
    return optimizer.minimize(loss, **arguments)


def looked_at(optimizer: Any, loss: Any, **arguments: Any) -> Any:
    """Only rank 0 reads the averages, as for a summary."""
    pairs = optimizer.compute_gradients(loss, arguments.pop("var_list", None))
    seen = [tf.norm(g) for g, _ in pairs if g is not None] if RANK == 0 else []
    return tf.group(optimizer.apply_gradients(pairs, **arguments), *seen)


def raw_gradients(optimizer: Any, loss: Any, var_list: Any = None, **arguments: Any) -> Any:
    """Bypasses compute_gradients, so the kernels average."""
    if callable(loss):
        with tf.GradientTape() as tape:
            value = loss()
        gradients = tape.gradient(value, var_list)
    else:
        var_list = v1.trainable_variables()
        gradients = tf.gradients(loss, var_list, gate_gradients=True)
    return optimizer.apply_gradients(zip(gradients, var_list), **arguments)


def counts(before: dict[str, int]) -> dict[str, int]:
    """Requests of this process per step since `before`."""
    if not hooks.active:
        return {}
    after = c_api.stats()
    return {key: after[key] - before[key] for key in ("gradients", "completed", "updated")}


def stats() -> dict[str, int]:
    return c_api.stats() if hooks.active else {}


# --- The three ways to run ------------------------------------------------------------------------


def in_session(make: Any, train: Any, resource: bool, poison: bool = False) -> dict[str, Any]:
    dtype = np.float32 if poison else np.float64
    with tf.Graph().as_default(), v1.Session() as session:
        variables = [
            v1.get_variable(name, initializer=initial(name, dtype), use_resource=resource)
            for name in SHAPES
        ]
        v1.get_variable("unused", initializer=1.0)  # its gradient is None
        step = v1.train.get_or_create_global_step()
        x, y = v1.placeholder(dtype, [None, 4]), v1.placeholder(dtype, [None, 3])
        operation = train(make(), loss_of(variables, x, y), global_step=step)
        session.run(v1.global_variables_initializer())
        for i in range(STEPS):
            before = stats()
            session.run(operation, dict(zip((x, y), part(i, poison))))
        counted = counts(before)
        values = dict(zip(SHAPES, session.run(variables)))
        return {"values": values, "steps": int(session.run(step)), "counts": counted}


def in_eager(make: Any, train: Any, decorate: Any = None, poison: bool = False) -> dict[str, Any]:
    """In eager code; in functions if `decorate` makes one."""
    dtype = np.float32 if poison else np.float64
    # Eager variables created after the first tape are synchronized at their first update.
    same = decorate is None
    variables = [tf.Variable(initial(name, dtype, same), name="variable") for name in SHAPES]
    unused = tf.Variable(1.0)
    step_count = tf.Variable(0, dtype=tf.int64)
    optimizer = make()

    def step(x: Any, y: Any) -> None:
        train(
            optimizer,
            lambda: loss_of(variables, x, y),
            var_list=[*variables, unused],
            global_step=step_count,
        )

    run = decorate(step) if decorate else step
    for i in range(STEPS):
        before = stats()
        run(*map(tf.constant, part(i, poison)))
    counted = counts(before)
    values = {name: v.numpy() for name, v in zip(SHAPES, variables)}
    return {"values": values, "steps": int(step_count.numpy()), "counts": counted}


def compiled(function: Any) -> Any:
    return tf.function(function, jit_compile=compiles())


for _name, _make, _train in (
    ("clip", adam, clipped),
    ("minimize", adam, minimized),
    ("looked at", adam, looked_at),
    ("raw", adam, raw_gradients),
    ("assigns", Assigns, minimized),
    ("assigns clip", Assigns, clipped),
):
    CASES[f"{_name} ref"] = functools.partial(in_session, _make, _train, resource=False)
    CASES[f"{_name} resource"] = functools.partial(in_session, _make, _train, resource=True)
    CASES[f"{_name} function"] = functools.partial(in_eager, _make, _train, tf.function)
    if _name != "assigns clip":  # eager code does not know the origin of a clipped gradient
        CASES[f"{_name} eager"] = functools.partial(in_eager, _make, _train)
CASES["clip compiled"] = lambda: in_eager(adam, clipped, compiled)
CASES["scaled resource"] = lambda: in_session(scaled, minimized, True, poison=True)
CASES["scaled function"] = lambda: in_eager(scaled, minimized, tf.function, poison=True)
CASES["scaled eager"] = lambda: in_eager(scaled, minimized, poison=True)
CASES["scaled clip eager"] = lambda: in_eager(scaled, clipped, poison=True)
CASES["scaled clip function"] = lambda: in_eager(scaled, clipped, tf.function, poison=True)


def old_control_flow() -> dict[str, Any]:
    v1.disable_control_flow_v2()
    try:
        return in_session(scaled, minimized, True, poison=True)
    finally:
        v1.enable_control_flow_v2()


CASES["scaled old control flow"] = old_control_flow


def assigned_by_hand(resource: bool) -> dict[str, Any]:
    """Assigns clipped tf.gradients without an optimizer."""

    def train(_: Any, loss: Any, global_step: Any) -> Any:
        variables = v1.trainable_variables()[: len(SHAPES)]
        gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), 0.3)
        updates = [v1.assign_sub(v, 0.1 * g) for v, g in zip(variables, gradients)]
        return tf.group(v1.assign_add(global_step, 1), *updates)

    return in_session(lambda: None, train, resource)


CASES["by hand ref"] = functools.partial(assigned_by_hand, False)
CASES["by hand resource"] = functools.partial(assigned_by_hand, True)


def gradient_of_a_tensor() -> list[float]:
    """It belongs to no variable and is still averaged, like any result of compute_gradients."""
    own = tf.constant([2.0 * RANK + 1 if SIZE > 1 else 2.0])
    optimizer = v1.train.GradientDescentOptimizer(0.1)
    ((gradient, _),) = optimizer.compute_gradients(lambda: tf.reduce_sum(own**2), [own])
    return [float(value) for value in gradient.numpy()]


def sparse() -> str:
    """compute_gradients averages a sparse gradient as such; apply_gradients does not average
    again."""
    with tf.Graph().as_default():
        variable = v1.get_variable("rows", initializer=np.ones([4, 2], "f"))
        optimizer = v1.train.GradientDescentOptimizer(0.1)
        pairs = optimizer.compute_gradients(tf.reduce_sum(tf.gather(variable, [1]) ** 2))
        assert isinstance(pairs[0][0], tf.IndexedSlices)
        optimizer.apply_gradients(pairs)
        ops = [op.type for op in tf.compat.v1.get_default_graph().get_operations()]
        return (
            "ok" if ops.count("IdentityN") == (SIZE > 1) else f"{ops.count('IdentityN')} averages"
        )


def main() -> None:
    single_threaded_ops(inter_op=2)
    printed: dict[str, Any] = {}
    for name in sys.argv[1:] or CASES:
        printed[name] = CASES[name]()
        values = printed[name]["values"]
        printed[name]["values"] = {key: encode(value) for key, value in values.items()}
    result({"cases": printed, "sparse": sparse(), "tensor": gradient_of_a_tensor()})


main()
