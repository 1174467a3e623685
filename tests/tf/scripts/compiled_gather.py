"""Rows gathered in compiled functions: prints by case whether they have numpy's bits, and calls.

The table is initialized alike on all ranks; which rows are gathered differs by rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from common import place, result
from tensorflow.mpi._src.average import averaging

RANK, SIZE = place()
ROWS, WIDTH, COUNT = 20_000, 64, 200  # float32 [20,000, 64] is 5 MB


def values(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(shape).normal(size=shape).astype(dtype)


def drawn(*shape: int, dtype: str = "int32", rank: int = RANK, step: int = 0) -> np.ndarray:
    """Row 5, twice, and others of this rank's."""
    ids = np.random.default_rng([rank, step]).integers(ROWS, size=shape).astype(dtype)
    ids.flat[:2] = 5
    return ids


def gathered(table: np.ndarray, ids: np.ndarray, gather: Callable[[Any, Any], Any]) -> list[Any]:
    """[whether they are as by numpy, calls of ours]"""
    variable = tf.Variable(table)
    run = tf.function(lambda ids: gather(variable, ids), jit_compile=True)
    found = run(ids).numpy()
    calls = run.experimental_get_compiler_ir(ids)(stage="hlo").count("tfmpi_gather_rows")
    # In XLA an index outside counts as the next one inside.
    return [bool(np.array_equal(found, table[np.clip(ids, 0, len(table) - 1)])), calls]


def of_variable(variable: Any, ids: Any) -> Any:
    return tf.gather(variable, ids)


def of_values(variable: Any, ids: Any) -> Any:
    return tf.gather(variable.read_value(), ids)


def of_last_but_one(variable: Any, ids: Any) -> Any:
    return tf.gather(variable.read_value(), ids, axis=-2)


def by_columns(variable: Any, ids: Any) -> Any:
    return tf.transpose(tf.gather(tf.transpose(variable), ids, axis=1))


def in_batches(variable: Any, ids: Any) -> Any:
    return tf.gather(variable[tf.newaxis], ids[tf.newaxis], axis=1, batch_dims=1)[0]


def outside() -> np.ndarray:
    ids = drawn(COUNT)
    ids[3], ids[COUNT - 1], ids[COUNT // 2] = -7, ROWS, np.iinfo(np.int32).max
    return ids


def trained() -> dict[str, Any]:
    """The variable is updated in place, by both ranks' rows, after rows were gathered from it."""
    variable = tf.Variable(values(ROWS, WIDTH))
    wanted = values(ROWS, WIDTH).astype(float)

    @tf.function(jit_compile=True)
    def run(ids: Any) -> Any:
        rows = tf.gather(variable, ids)
        own = tf.IndexedSlices(rows, ids, tf.constant([ROWS, WIDTH]))
        average = averaging.average_slices(own, "table", "trained")
        variable.scatter_sub(tf.IndexedSlices(0.5 * average.values, average.indices))
        return rows

    same = True
    for step in range(3):
        before = variable.numpy()
        same = same and np.array_equal(
            run(drawn(COUNT, step=step)), before[drawn(COUNT, step=step)]
        )
        old = wanted.copy()
        for rank in range(SIZE):
            ids = drawn(COUNT, rank=rank, step=step)
            np.subtract.at(wanted, ids, 0.5 / SIZE * old[ids])
    ids = drawn(COUNT, step=2)
    calls = run.experimental_get_compiler_ir(ids)(stage="hlo").count("tfmpi_gather_rows")
    return {
        "same": bool(same),
        "distance": float(np.abs(variable.numpy() - wanted).max()),
        "calls": calls,
    }


def main() -> None:
    table, wide = values(ROWS, WIDTH), values(ROWS // 4, 3, 7, 19)
    cases = {
        "variable": gathered(table, drawn(COUNT), of_variable),
        "values": gathered(table, drawn(COUNT), of_values),
        "axis of rows": gathered(table, drawn(COUNT), of_last_but_one),
        "float64": gathered(values(ROWS, WIDTH, dtype="float64"), drawn(COUNT), of_variable),
        "int64": gathered(table, drawn(COUNT, dtype="int64"), of_values),
        "indices of two dimensions": gathered(table, drawn(COUNT // 4, 4), of_variable),
        "rows of three dimensions": gathered(wide, drawn(COUNT) % len(wide), of_variable),
        "outside": gathered(table, outside(), of_variable),
    }
    others = {
        "small table": gathered(table[:100], drawn(COUNT) % 100, of_variable),
        "few rows": gathered(table, drawn(20), of_variable),
        "numbers": gathered(values(2_000_000), drawn(COUNT), of_variable),
        "columns": gathered(table, drawn(COUNT), by_columns),
        "batches": gathered(table, drawn(COUNT), in_batches),
        "float16": gathered(values(ROWS, 2 * WIDTH, dtype="float16"), drawn(COUNT), of_variable),
    }
    result({"cases": cases, "others": others, "trained": trained()})


main()
