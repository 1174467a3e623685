"""averaging.average in every way that TensorFlow runs it. Prints this rank's result by case.

    average.py values DIRECTORY    all cases; rank 0 saves a model with an average in DIRECTORY
    average.py same                equal data on all ranks
    average.py refused             what no rank can do; TF_XLA_FLAGS adds a device
    average.py load DIRECTORY      loads the saved model of `values`, in any TensorFlow

With TEST_BROKEN every IdentityN loses its mark, as the control.
"""

from __future__ import annotations

import functools
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from common import encode, result, single_threaded_ops

v1 = tf.compat.v1
MODE = sys.argv[1]
DTYPES = ("float16", "bfloat16", "float32", "float64", "complex64")


def tensor(rank: int, dtype: str = "float32", size: int = 4) -> Any:
    return tf.cast(tf.range(size) + 1 + 10 * rank, dtype)


if MODE != "load":
    from tensorflow.mpi._src.average import averaging, carrier
    from tensorflow.mpi._src.runtime import c_api
    from tensorflow.mpi._src.variables.large_variables import EagerVariable
    from tensorflow.python.eager import context, execute

    RANK, SIZE = tf.mpi.rank(), tf.mpi.size()


def average(tensors: list[Any], label: str, weight: Any = None) -> list[Any]:
    names = [f"tensor {i}" for i in range(len(tensors))]
    averages = averaging.average(tensors, names, label, weight)
    if os.environ.get("TEST_BROKEN") and not tf.executing_eagerly():
        averages[0].op._clear_attr("_tf_mpi_average")
    return averages


def mine(number: int = 3) -> list[Any]:
    return [(i + 1) * tensor(RANK) for i in range(number)]


# --- Cases that must give the mean of the ranks' tensors ------------------------------------------


def eager() -> list[Any]:
    return average(mine(), "eager")


def of_a_function() -> list[Any]:
    """Two averages with one label; one output is not read."""

    @tf.function
    def step(*tensors: Any) -> Any:
        first = average(list(tensors), "function")
        return [*first[:2], average([tensors[2]], "function")[0]]

    return list(step(*mine()))


def of_constants() -> list[Any]:
    """Averages that Grappler could compute while it optimizes the function."""
    constants = [np.asarray(value) for value in mine()]

    @tf.function
    def step() -> Any:
        return average([tf.constant(value) for value in constants], "constants")

    return list(step())


def of_a_loop_and_a_branch() -> list[Any]:
    """The loop averages to (1 .. 4) * 1, so every rank takes the branch."""

    @tf.function
    def step(value: Any) -> Any:
        kept = value
        for _ in tf.range(3):
            kept = average([value], "control flow")[0]
        if kept[0] > 0:
            return average([value], "control flow")[0], average([2 * value], "control flow")[0]
        return value, value

    return [*step(tensor(RANK)), average([3 * tensor(RANK)], "control flow")[0]]


def of_parallel_iterations() -> list[Any]:
    """Without side effects, TensorFlow runs a loop's iterations in parallel. The first to finish
    differs by rank."""

    def delayed(number: Any) -> Any:
        time.sleep(0.03 * (number % 2 == RANK % 2))
        return np.float32(number + 1)

    def iteration(number: Any) -> Any:
        factor = tf.numpy_function(delayed, [number], tf.float32, stateful=False)
        return average([factor * tensor(RANK)], "parallel")[0]

    @tf.function
    def step() -> Any:
        return tf.map_fn(iteration, tf.range(3), fn_output_signature=tf.TensorSpec([4]))

    return list(tf.reduce_mean([step() for _ in range(6)], axis=0))


def of_nested_functions() -> list[Any]:
    """Rank 1 has already traced the inner function; rank 0 traces it inside the outer one."""

    @tf.function
    def inner(value: Any) -> Any:
        return average([value], "nested")[0]

    @tf.function
    def outer(value: Any) -> Any:
        return inner(value), average([2 * value, 3 * value], "outer")

    if RANK == 1:
        inner.get_concrete_function(tensor(RANK))
    first, rest = outer(tensor(RANK))
    return [first, *rest]


def after_a_retrace_on_rank_0() -> list[Any]:
    @tf.function
    def step(value: Any, retrace: Any) -> Any:
        return average([value, 2 * value], "retrace") + average([3 * value], "retrace")

    for i in range(3):
        averages = step(tensor(RANK), i if RANK == 0 else None)
    return list(averages)


def of_a_session() -> list[Any]:
    with tf.Graph().as_default(), v1.Session() as session:
        placeholder = v1.placeholder(tf.float32, [None])
        averages = average([placeholder, 2 * placeholder, 3 * placeholder], "session")
        value = np.asarray(VALUE)
        alone = session.run(averages[2], {placeholder: value})
        return [*session.run(averages[:2], {placeholder: value}), alone]


def with_a_variable_read_in_place() -> list[Any]:
    """The average must not overwrite the variable's own buffer."""
    variable = tf.Variable(tensor(RANK))

    @tf.function
    def step() -> Any:
        averages = average([variable, 2 * variable, 3 * variable.read_value()], "variable")
        return averages, variable.read_value()

    averages, kept = step()
    np.testing.assert_array_equal(kept, tensor(RANK))
    return list(averages)


MEANS = (
    eager,
    of_a_function,
    of_constants,
    of_a_loop_and_a_branch,
    of_parallel_iterations,
    of_nested_functions,
    after_a_retrace_on_rank_0,
    of_a_session,
    with_a_variable_read_in_place,
)


# --- Weights, dtypes, errors ---------------------------------------------------------------------


def weights() -> dict[str, Any]:
    """Unequal weights, and 0 on the last rank, whose data is NaN; in every dtype and mode."""
    values = {}
    own = [2 * (RANK + 1) / (SIZE + 1), 0.0 if RANK == SIZE - 1 else SIZE / (SIZE - 1)]
    for dtype in DTYPES:
        for number, weight in enumerate(own):
            tensors = [tensor(RANK, dtype), tensor(RANK, dtype, 3000)]
            if weight == 0:
                tensors = [t * tf.cast(float("nan"), dtype) for t in tensors]
            for mode, run in (("eager", average), ("function", tf.function(average))):
                label = f"{dtype} {number}"
                first, second = run(tensors, label, tf.constant(weight))
                values[f"{label} {mode}"] = [encode(first.numpy()), encode(second.numpy()[:4])]
    return values


def outcome(function: Callable[[], Any]) -> str:
    try:
        function()
    except Exception as error:  # the test checks its type and message
        return f"{type(error).__name__}: {error}"
    return "ok"


def errors() -> dict[str, str]:
    def function_of(*tensors: Any) -> Any:
        return tf.function(lambda: average(list(tensors), "errors"))()

    def marked(names: list[str], weight: Any = 1.0, **more: Any) -> str:
        """An average of one tensor, as a damaged graph may contain it."""
        made = lambda: carrier.marked_identity(  # noqa: E731
            [tf.ones([2])], names, "errors", tf.constant(weight), **more
        )
        return outcome(lambda: tf.function(made)())

    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), tf.constant([4, 2]))
    one = tf.ones([2])
    return {
        "shape": outcome(lambda: average([one, tf.ones([RANK + 1])], "errors")),
        "shape in a function": outcome(lambda: function_of(one, tf.ones([RANK + 1]))),
        "integers": outcome(lambda: average([one, tf.range(3)], "errors")),
        "integers in a function": outcome(lambda: function_of(one, tf.range(3))),
        "sparse": outcome(lambda: average([slices], "errors")),
        "names": outcome(lambda: averaging.average([one], [], "errors")),
        "weight": outcome(lambda: average([one], "errors", tf.constant(-1.0))),
        "none": outcome(lambda: average([], "errors")),
        "no names": marked([]),
        "two names": marked(["a", "b"]),
        "two weights": marked(["a"], weight=[1.0, 1.0]),
        "no indices": marked(["a"], **{carrier.TABLE_ROWS: {"i": 4}}),
        "good": outcome(lambda: average([one], "errors")),
    }


def refused() -> dict[str, str]:
    c_api.register_ops()  # with averaging off, as for a graph that ranks have saved
    strings = tf.Variable(["a"])

    def reduced(reduce_op: int) -> Any:
        types = ("T", tf.float32.as_datatype_enum, "reduce_op", reduce_op)
        return execute.execute(
            *(b"TfMpiAllreduce", 1, [tf.ones([2]), tf.constant(f"op {reduce_op}")]),
            attrs=(*types, "members", [], "for_horovod", False),
            ctx=context.context(),
        )

    def on_another_device() -> None:
        with tf.device("/device:XLA_CPU:0"):
            variable = tf.Variable([1.0, 2.0])
            tf.raw_ops.ResourceApplyGradientDescent(
                var=variable.handle, alpha=0.1, delta=tf.ones([2])
            )

    def of_too_many_rows() -> None:
        """Rank 1 has room for a part of the rows of both ranks."""
        rows = tf.IndexedSlices(tf.ones([1 << 15, 1024]), tf.range(1 << 15))
        limits = resource.getrlimit(resource.RLIMIT_AS)
        if RANK == 1:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            room = pages * resource.getpagesize() + (192 << 20)
            resource.setrlimit(resource.RLIMIT_AS, (room, limits[1]))
        try:
            averaging.average_slices(rows, "rows", "errors")
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)

    cases = {
        "allreduce": lambda: reduced(0),
        "no reduce_op": lambda: reduced(99),
        "strings": lambda: EagerVariable(strings.handle).broadcast_from_rank_0("strings"),
        "device": on_another_device,
        "rows": of_too_many_rows,
    }
    return {name: outcome(case) for name, case in cases.items()}


def cancelled() -> dict[str, Any]:
    """Rank 0 gives up because the others are late, before it hears that they wait in a barrier;
    then all ranks average, and gather."""
    with tf.Graph().as_default(), v1.Session() as session:
        averages = average([VALUE, 2 * VALUE], "cancelled")
        gathered = tf.mpi.allgather(tf.constant([RANK]))
        session.run(averages)  # a session's first average synchronizes its variables
        errors = []
        if RANK == 0:
            options = v1.RunOptions(timeout_in_ms=100)
            for fetch in (averages, gathered):
                errors.append(outcome(functools.partial(session.run, fetch, options=options)))
            tf.mpi.barrier("cancelled")
        else:
            tf.mpi.barrier("cancelled")
            time.sleep(0.2)
        after = [encode(value) for value in session.run(averages)]
        return {"errors": errors, "after": after, "gathered": session.run(gathered).tolist()}


# --- Saving, and loading in any TensorFlow --------------------------------------------------------


class Model(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def average(self, value: Any) -> Any:
        return average([value, 2 * value, 3 * value], "saved")


def saved(directory: str) -> list[Any]:
    if RANK == 0:
        tf.saved_model.save(Model(), directory)
    tf.mpi.barrier("saved")
    return list(tf.saved_model.load(directory).average(tensor(RANK)))


def main() -> None:
    global VALUE
    single_threaded_ops(inter_op=2)
    if MODE == "load":
        averages = tf.saved_model.load(sys.argv[2]).average(tensor(5))
        return result({"saved": [encode(value.numpy()) for value in averages]})
    if MODE == "refused":
        return result(refused())
    if MODE == "same":
        for _ in range(3):
            average([tf.ones([3]), tf.constant([1.0, 2.0])], "same")
        return None
    VALUE = np.asarray(tensor(RANK))
    means = {f.__name__: [encode(np.asarray(v)) for v in f()] for f in MEANS}
    means["saved"] = [encode(value.numpy()) for value in saved(sys.argv[2])]
    before = c_api.stats()
    average(mine(100), "counted")
    counts = {key: c_api.stats()[key] - before[key] for key in ("gradients", "collectives")}
    empty = [value.shape.as_list() for value in average([tf.zeros([0]), tf.zeros([2, 0])], "empty")]
    others = {"empty": empty, "weights": weights(), "errors": errors(), "cancelled": cancelled()}
    return result({"means": means, "counts": counts, **others})


VALUE: Any = None
main()
