"""Edge cases of sparse gradients on two ranks: prints the results by case.

Rank 1 ends before rank 0, which continues alone for a step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from common import compiles, encode, place, result
from tensorflow.mpi._src.average import averaging
from tensorflow.mpi._src.runtime import c_api

raw = tf.raw_ops
RANK, SIZE = place()
ROWS, WIDTH = 6, 2


def slices(values: Any, indices: Any, rows: int = ROWS) -> tf.IndexedSlices:
    values = np.broadcast_to(np.array(values, "f").reshape(-1, 1), (len(indices), WIDTH))
    return tf.IndexedSlices(
        tf.constant(values), tf.constant(indices, tf.int64), tf.constant([rows, WIDTH])
    )


def shown(average: tf.IndexedSlices) -> dict[str, float]:
    """Row by index; all its elements are equal."""
    values, indices = average.values.numpy(), average.indices.numpy()
    assert len(set(indices)) == len(indices) and np.ptp(values, axis=-1).sum() == 0
    return {str(i): float(v) for i, v in sorted(zip(indices, values[:, 0]))}


def completed(run: Callable[[], Any]) -> tuple[Any, int]:
    """The result of `run`, and the number of requests of this rank."""
    before = c_api.stats()["completed"]
    value = run()
    return value, c_api.stats()["completed"] - before


def weighted() -> Any:
    """Rank 1 has weight 0 and poisoned values."""
    own = slices([1.0, 3.0], [2, 5]) if RANK == 0 else slices([np.nan], [4])
    return shown(averaging.average_slices(own, "table", "weighted", 2.0 - 2.0 * RANK))


def every_row_of_every_rank() -> Any:
    """Dense moves fewer bytes: two requests, one of which moves nothing."""
    own = slices(np.arange(ROWS) + 10.0 * RANK, list(range(ROWS)))
    average, requests = completed(lambda: averaging.average_slices(own, "table", "full"))
    return [shown(average), requests]


def some_rows() -> Any:
    own = slices([1.0, 2.0, 4.0], [3 * RANK, 1, 1])
    average, requests = completed(lambda: averaging.average_slices(own, "table", "some"))
    return [shown(average), requests]


def function_that_knows_its_shapes() -> Any:
    """Two rows in, three out: no shape from the trace may be constant-folded."""

    @tf.function
    def run(values: Any) -> Any:
        own = tf.IndexedSlices(values, tf.constant([RANK, 5]), tf.constant([ROWS, WIDTH]))
        average = averaging.average_slices(own, "table", "function")
        return tf.shape(average.values), tf.size(average.indices), average

    shape, size, average = run(tf.ones([2, WIDTH]) * (RANK + 1.0))
    return [shape.numpy().tolist(), int(size), shown(average)]


def compiled(own: tf.IndexedSlices, label: str, weight: float = 1.0) -> dict[str, float]:
    """The average in a compiled step; the unused room must be zeros with an invalid index."""

    @tf.function(jit_compile=True)
    def run(values: Any, indices: Any) -> Any:
        rows = tf.IndexedSlices(values, indices, own.dense_shape)
        average = averaging.average_slices(rows, "table", label, tf.constant(weight))
        if not isinstance(average, tf.IndexedSlices):
            return average, tf.range(average.shape[0])
        return average.values, average.indices

    values, indices = (tensor.numpy() for tensor in run(own.values, own.indices))
    assert np.ptp(values, axis=-1).sum() == 0
    found: dict[str, float] = {}
    for index, value in zip(indices.tolist(), values[:, 0].tolist()):
        assert str(index) not in found
        if index >= 0:
            found[str(index)] = value
        else:
            assert (index, value) == (-1, 0.0)
    return dict(sorted(found.items()))


def compiled_rows() -> Any:
    """Duplicates within and across ranks; rank 1 has an extra row. Then int32, and poison."""
    own = slices([1.0, 2.0, 4.0], [0, 7, 7], 1000) if RANK == 0 else slices([1.0] * 4, [7, 3, 1, 9])
    shape = tf.constant([1000, WIDTH])
    wide = tf.IndexedSlices(own.values, own.indices, shape)
    narrow = tf.IndexedSlices(own.values, tf.cast(own.indices, tf.int32), shape)
    poison = slices([1.0, 3.0], [2, 5], 1000) if RANK == 0 else slices([np.nan] * 2, [4, 4], 1000)
    return [
        compiled(wide, "compiled"),
        compiled(narrow, "narrow"),
        compiled(poison, "compiled weight", 2.0 - 2.0 * RANK),
    ]


def compiled_read_and_write_back() -> dict[str, float]:
    """Like a lazy optimizer: the unused room must not undo an update of row 0."""
    table = tf.Variable(tf.ones([1000, WIDTH]))

    @tf.function(jit_compile=True)
    def run(values: Any, indices: Any) -> None:
        rows = tf.IndexedSlices(values, indices, tf.constant([1000, WIDTH]))
        average = averaging.average_slices(rows, "table", "lazy")
        changed = 2 * tf.gather(table, average.indices) + average.values
        table.scatter_update(tf.IndexedSlices(changed, average.indices))

    own = slices([1.0, 2.0], [0, 5 + RANK], 1000)
    run(own.values, own.indices)
    return {str(i): float(table[i, 0]) for i in (0, 1, 5, 6, 999)}


def compiled_scatters() -> list[Any]:
    return [compiled_scatter(tf.float32, tf.int32), compiled_scatter(tf.float64, tf.int64)]


def compiled_scatter(dtype: Any, index: Any) -> list[Any]:
    """Updates of a table by averaged rows: earlier reads, the table, and calls of our kernel."""
    table = tf.Variable(tf.ones([1000, WIDTH], dtype))

    @tf.function(jit_compile=True)
    def run(values: Any, indices: Any, rate: Any) -> Any:
        rows = tf.IndexedSlices(values, indices, tf.constant([1000, WIDTH]))
        before = tf.gather(table, [0, 5])
        average = averaging.average_slices(rows, "table", f"scatter {dtype.name}")
        table.scatter_add(average)
        table.scatter_sub(tf.IndexedSlices(3 * average.values, average.indices))
        table.scatter_sub(tf.IndexedSlices(-average.values * rate, average.indices))
        table.scatter_add(tf.IndexedSlices(3 * (average.values * rate), average.indices))
        table.scatter_sub(tf.IndexedSlices(average.values**2, average.indices))
        table.scatter_add(tf.IndexedSlices(values, indices + 900))  # not averaged
        return before

    own = slices([1.0 + RANK] * 2, [RANK, 5], 1000)
    arguments = tf.cast(own.values, dtype), tf.cast(own.indices, index), tf.constant(2, dtype)
    before = run(*arguments).numpy().tolist()
    calls = run.experimental_get_compiler_ir(*arguments)(stage="hlo").count("tfmpi_scatter_rows")
    after = {str(i): table[i].numpy().tolist() for i in (0, 1, 5, 6, 905, 999)}
    return [before, after, calls]


def compiled_clears() -> list[int]:
    """Calls that clear the unused room: none if only our scatters read the rows."""
    table = tf.Variable(tf.ones([1000, WIDTH]))

    def clears(reads_values: bool) -> int:
        @tf.function(jit_compile=True)
        def run(values: Any, indices: Any) -> Any:
            rows = tf.IndexedSlices(values, indices, tf.constant([1000, WIDTH]))
            average = averaging.average_slices(rows, "table", f"clears {reads_values}")
            table.scatter_sub(tf.IndexedSlices(0.5 * average.values, average.indices))
            return tf.norm(average.values) if reads_values else tf.constant(0.0)

        own = slices([1.0], [RANK], 1000)
        program = run.experimental_get_compiler_ir(own.values, own.indices)
        target = 'custom_call_target="tfmpi_zero_unused_rows"'
        return str(program(stage="optimized_hlo")).count(target)

    return [clears(False), clears(True)]


def compiled_constants() -> list[float]:
    """Gradients that depend on no variable or input: a dense one, and rows."""
    bias, table = tf.Variable(0.0), tf.Variable(tf.zeros([1000, WIDTH]))
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(1.0)

    @tf.function(jit_compile=True)
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = (1.0 + RANK) * (bias + tf.reduce_sum(tf.gather(table, [0, 1 + RANK])))
        gradients = tape.gradient(loss, [bias, table])
        optimizer.apply_gradients(zip(gradients, [bias, table]))

    step()
    return [float(bias), *table[:3, 0].numpy().tolist()]


def compiled_full_table() -> Any:
    """Where dense moves fewer bytes, the whole table is reduced."""
    return compiled(slices(np.arange(ROWS) + 10.0 * RANK, list(range(ROWS))), "compiled full")


def compiled_without_room() -> str:
    """Rank 0 has many more rows than rank 1 left room for."""
    count = 1 if RANK else 3000
    own = slices([1.0] * count, list(range(count)), 100_000)
    return error_of(lambda: compiled(own, "room"))


def mixed_in_compiled_steps() -> str:
    """Rank 1 has so many rows that it uses a dense tensor; rank 0 does not."""
    own = slices(np.arange(ROWS), list(range(ROWS))) if RANK else slices([1.0], [2])
    return error_of(lambda: compiled(own, "compiled mixed"))


def error_of(run: Callable[[], Any]) -> str:
    try:
        run()
    except Exception as error:  # the test checks its type and message
        return f"{type(error).__name__}: {error}"
    return "none"


def mixed_in_raw_ops() -> str:
    var, accum = (tf.Variable(tf.ones([ROWS, WIDTH]), name="mixed") for _ in range(2))
    state = {"var": var.handle, "accum": accum.handle, "lr": 0.1, "momentum": 0.9}
    dense, own = tf.ones([ROWS, WIDTH]), slices([1.0], [2])

    def apply() -> None:
        if RANK == 0:
            raw.ResourceApplyMomentum(**state, grad=dense)
        else:
            raw.ResourceSparseApplyMomentum(**state, grad=own.values, indices=own.indices)

    return error_of(apply)


def mixed_in_keras() -> str:
    variable = keras.Variable(np.ones([ROWS, WIDTH], "f"), name="mixed")
    own = slices([1.0], [2]) if RANK == 0 else tf.ones([ROWS, WIDTH])
    return error_of(lambda: keras.optimizers.SGD(0.1).apply_gradients([(own, variable)]))


def shape_of_no_variable() -> list[dict[str, float]]:
    """Slices that a script creates with any dense_shape, which stock optimizers ignore."""
    return [
        misshaped(lambda step: step),
        misshaped(tf.function),
        misshaped(lambda step: tf.function(step, jit_compile=compiles())),
        misshaped(tf.function, tf.compat.v1.train.GradientDescentOptimizer(1.0)),
    ]


def misshaped(traced: Callable[[Any], Any], optimizer: Any = None) -> dict[str, float]:
    make = tf.Variable if optimizer else keras.Variable
    variable = make(np.zeros([ROWS, WIDTH], "f"), name="shaped")
    if optimizer is None:
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build([variable])

    def step() -> None:
        own = slices([-1.0, -2.0], [3, 4 + RANK])
        own = tf.IndexedSlices(own.values, own.indices, tf.constant([1]))
        optimizer.apply_gradients([(own, variable)])

    traced(step)()
    rows = variable.numpy()[:, 0]
    return {str(row): float(rows[row]) for row in np.flatnonzero(rows)}


def bad_index() -> str:
    """On rank 1 only: every rank's stock kernel reports it."""
    var = tf.Variable(tf.ones([ROWS, WIDTH]), name="bad")
    own = slices([1.0], [2 + 40 * RANK])
    return error_of(lambda: descend(var, own))


def no_rows() -> str:
    """A variable that is a scalar: every rank's stock kernel reports it."""
    return error_of(lambda: descend(tf.Variable(1.0, name="scalar"), slices([1.0], [0])))


def descend(var: tf.Variable, own: tf.IndexedSlices) -> None:
    """With an op without slots: var -= 0.5 * gradient."""
    raw.ResourceSparseApplyProximalGradientDescent(
        var=var.handle, alpha=0.5, l1=0.0, l2=0.0, grad=own.values, indices=own.indices
    )


def many_rows() -> float:
    """More rows than the kernel updates at once: the difference to numpy."""
    parts = [np.random.default_rng(rank).permutation(2000)[:700] for rank in range(2)]
    table = tf.Variable(tf.ones([2000, 3]), name="many")
    values = [np.repeat(part[:, None] / 1000.0 + rank, 3, 1) for rank, part in enumerate(parts)]
    descend(table, tf.IndexedSlices(tf.constant(values[RANK], tf.float32), parts[RANK]))
    expected = np.ones([2000, 3])
    for value, part in zip(values, parts):
        expected[part] -= 0.5 * value / 2
    return float(np.abs(table.numpy() - expected).max())


def alone_at_the_end() -> Any:
    return encode(averaging.average_slices(slices([8.0], [3]), "table", "end").values)


def main() -> None:
    cases = [
        weighted,
        every_row_of_every_rank,
        some_rows,
        function_that_knows_its_shapes,
        compiled_rows,
        compiled_read_and_write_back,
        compiled_scatters,
        compiled_clears,
        compiled_constants,
        compiled_full_table,
        compiled_without_room,
        mixed_in_compiled_steps,
        mixed_in_raw_ops,
        mixed_in_keras,
        shape_of_no_variable,
        bad_index,
        no_rows,
        many_rows,
    ]
    if not compiles():
        cases = [case for case in cases if "compiled" not in case.__name__]
    found = {case.__name__: case() for case in cases}
    if RANK == 0:
        found["alone_at_the_end"] = alone_at_the_end()
    result(found)


main()
