"""Training inside XLA clusters: prints the resulting variables by case.

    compiled.py train     all cases; a plain process is the reference, on the whole batch
    compiled.py errors    ranks that disagree inside a compiled function and then agree again
    compiled.py raise     rank 1 stops; prints the error of rank 0's compiled step

With TEST_UNSYNCHRONISED ranks take their part of the data and average nothing, as the control.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from common import encode, place, result, single_threaded_ops
from tensorflow.mpi._src.average import averaging, carrier

STEPS, BATCH = 40, 12
MODE = sys.argv[1]
RANK, SIZE = place()
RANDOM = np.random.default_rng(5)
X = RANDOM.normal(size=(STEPS, BATCH, 4)).astype("f")
Y = RANDOM.normal(size=(STEPS, BATCH, 3)).astype("f")
compiled = functools.partial(tf.function, jit_compile=True)


def part(step: int) -> tuple[Any, Any]:
    own = slice(RANK * BATCH // SIZE, (RANK + 1) * BATCH // SIZE)
    return tf.constant(X[step][own]), tf.constant(Y[step][own])


class Model:
    """Two layers; each rank has other values, of which rank 0's are used, unless they are
    `same`."""

    def __init__(self, same: bool = False) -> None:
        random = np.random.default_rng(0 if same else RANK)
        shapes = ((4, 5), (5,), (5, 3))
        self.variables = [tf.Variable(random.normal(size=s).astype("f"), name="v") for s in shapes]

    def gradients(self, x: Any, y: Any) -> list[Any]:
        w, b, u = self.variables
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.tanh(x @ w + b) @ u - y) ** 2)
        return list(tape.gradient(loss, self.variables))

    def train(self, step: Callable[[Any, Any], Any]) -> list[Any]:
        for i in range(STEPS):
            step(*part(i))
        return [encode(variable.numpy()) for variable in self.variables]


# --- Optimizer ops -------------------------------------------------------------------------------


def descend(variable: Any, gradient: Any, slots: list[Any]) -> None:
    tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=0.1, delta=gradient)


def momentum(variable: Any, gradient: Any, slots: list[Any]) -> None:
    tf.raw_ops.ResourceApplyMomentum(
        var=variable.handle, accum=slots[0].handle, lr=0.05, grad=gradient, momentum=0.9
    )


def adam(variable: Any, gradient: Any, slots: list[Any]) -> None:
    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=slots[0].handle,
        v=slots[1].handle,
        beta1_power=0.5,
        beta2_power=0.6,
        lr=0.01,
        beta1=0.9,
        beta2=0.99,
        epsilon=1e-3,
        grad=gradient,
    )


def applied(op: Callable[..., None], decorate: Callable[[Any], Any]) -> list[Any]:
    model = Model()
    slots = [
        [tf.Variable(tf.zeros_like(v) + 0.1, name="slot") for _ in range(2)]
        for v in model.variables
    ]

    @decorate
    def step(x: Any, y: Any) -> None:
        for variable, gradient, own in zip(model.variables, model.gradients(x, y), slots):
            op(variable, gradient, own)

    return model.train(step)


# --- Averages ------------------------------------------------------------------------------------


def update(variables: list[Any], averages: list[Any]) -> None:
    for variable, average in zip(variables, averages):
        variable.assign_sub(0.1 * average)


def custom_loop() -> list[Any]:
    model = Model(same=True)

    @compiled
    def step(x: Any, y: Any) -> None:
        gradients = model.gradients(x, y)
        update(model.variables, averaging.average(gradients, ["w", "b", "u"], "loop"))

    return model.train(step)


def uneven_batches() -> list[Any]:
    """Rank 0 has all but one sample of each other rank, so each rank has other shapes and
    programs."""
    model = Model(same=True)

    @compiled
    def step(x: Any, y: Any, weight: Any) -> None:
        gradients = model.gradients(x, y)
        update(model.variables, averaging.average(gradients, ["w", "b", "u"], "uneven", weight))

    for i in range(STEPS):
        first = i % 2 + 1  # samples of every rank but the first
        starts = [0, *(BATCH - first * (SIZE - r) for r in range(1, SIZE)), BATCH]
        own = slice(starts[RANK], starts[RANK + 1])
        weight = tf.constant((own.stop - own.start) * SIZE / BATCH, tf.float32)
        step(tf.constant(X[i][own]), tf.constant(Y[i][own]), weight)
    return [encode(variable.numpy()) for variable in model.variables]


def many_at_once() -> list[Any]:
    """Independent averages in one cluster, which XLA may start in any order."""
    variables = [tf.Variable(tf.zeros([2 + 300 * (i % 2)]), name="many") for i in range(12)]

    @compiled
    def step(x: Any, y: Any) -> None:
        for i, variable in enumerate(variables):
            size = tf.shape(variable)
            gradient = tf.fill(size, tf.reduce_mean(x) * (i + 1) + tf.reduce_mean(y))
            update([variable], averaging.average([gradient], [f"v{i}"], f"many {i}"))

    for i in range(5 * STEPS):
        step(*part(i % STEPS))
    return [encode(variable.numpy()) for variable in variables]


def loop_and_branch() -> list[Any]:
    model = Model(same=True)

    @compiled
    def step(x: Any, y: Any) -> None:
        for _ in tf.range(2):
            gradients = model.gradients(x, y)
            update(model.variables, averaging.average(gradients, ["w", "b", "u"], "control"))
        if tf.reduce_sum(model.variables[0]) < 1e6:
            gradients = model.gradients(x, y)
            update(model.variables, averaging.average(gradients, ["w", "b", "u"], "control"))

    return model.train(step)


def inside_a_function() -> list[Any]:
    """A compiled function and an ordinary one that train the same variables alternately."""
    model = Model()

    @compiled
    def inner(x: Any, y: Any) -> None:
        for variable, gradient in zip(model.variables, model.gradients(x, y)):
            descend(variable, gradient, [])

    @tf.function
    def step(x: Any, y: Any) -> None:
        inner(x, y)
        for variable, gradient in zip(model.variables, model.gradients(x, y)):
            descend(variable, gradient, [])

    return model.train(step)


def train() -> dict[str, Any]:
    cases: dict[str, Callable[[], list[Any]]] = {
        f.__name__: f
        for f in (custom_loop, uneven_batches, many_at_once, loop_and_branch, inside_a_function)
    }
    for op in (descend, momentum, adam):
        cases[f"{op.__name__} compiled"] = functools.partial(applied, op, compiled)
        cases[f"{op.__name__} plain"] = functools.partial(applied, op, tf.function)
    return {name: dict(enumerate(case())) for name, case in cases.items()}


# --- Errors --------------------------------------------------------------------------------------


@compiled
def average_of(tensor: Any) -> Any:
    return averaging.average([tensor], ["t"], "compiled")[0]


@compiled
def average_of_some(tensor: Any, which: Any) -> Any:
    return averaging.average([tf.boolean_mask(tensor, which)], ["some"], "compiled")[0]


def average_of_rows() -> Any:
    rows = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([4000, 2]))
    return averaging.average_slices(rows, "rows", "traced").values


def outside() -> Any:
    """The average of a compiled function, in a function that is not compiled."""
    graph = compiled(average_of_rows).get_concrete_function().graph.as_graph_def()
    (average,) = (node.name for node in graph.node if "_tf_mpi_rows" in node.attr)

    def imported() -> Any:
        return tf.import_graph_def(graph, return_elements=[f"{average}:0"])[0]

    return tf.compat.v1.wrap_function(imported, [])()


def outcome(function: Callable[[], Any]) -> str:
    try:
        return f"{float(tf.reduce_sum(function()))}"
    except Exception as error:  # the test checks its type and message
        return f"{type(error).__name__}: {error}"


def errors() -> dict[str, str]:
    one = tf.ones([2])
    return {
        "shape": outcome(lambda: average_of(tf.ones([RANK + 1]))),
        "good": outcome(lambda: average_of(tf.fill([2], float(RANK)))),
        "float64": outcome(lambda: average_of(tf.fill([2], tf.constant(RANK, tf.float64)))),
        "integers": outcome(lambda: average_of(tf.range(3))),
        "dynamic": outcome(lambda: average_of_some(tf.ones([3]), tf.constant([True, False, True]))),
        "inside": outcome(compiled(tf.function(average_of_rows).get_concrete_function())),
        "outside": outcome(outside),
        "no names": outcome(
            compiled(lambda: carrier.marked_identity([one], [], "errors", tf.constant(1.0))[0])
        ),
        "good again": outcome(lambda: average_of(tf.fill([2], float(RANK)))),
    }


def stop() -> None:
    average_of(tf.ones([2]))
    if RANK == 1:
        raise RuntimeError("rank 1 has had enough")
    print("HEARD", outcome(lambda: average_of(tf.ones([2]))), flush=True)


def main() -> None:
    single_threaded_ops(inter_op=2)
    if MODE == "raise":
        return stop()
    return result(errors() if MODE == "errors" else train())


main()
