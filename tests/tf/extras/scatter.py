"""Scatters into resource variables: values, errors, and what concurrent readers see.

Prints a table by case, after updates that are the same on all ranks.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
import tensorflow as tf
from common import encode, result, single_threaded_ops

OPS = ("Add", "Sub", "Update")
DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)
ROWS, WIDTH = 50, 3


def scatter(op: str, table: tf.Variable, indices: Any, updates: Any) -> None:
    getattr(tf.raw_ops, "ResourceScatter" + op)(
        resource=table.handle, indices=indices, updates=updates
    )


def numbers(shape: tuple[int, ...], dtype: tf.DType, seed: int) -> tf.Tensor:
    return tf.cast(np.random.default_rng(seed).normal(0, 100, shape), dtype)


def tables() -> dict[str, Any]:
    """More rows than a block, duplicates, indices of another rank, a scalar, and no rows."""
    random = np.random.default_rng(1)
    forms = {
        "rows": (random.integers(ROWS, size=300), (300, WIDTH)),
        "matrix": (random.integers(ROWS, size=(2, 3)), (2, 3, WIDTH)),
        "scalar": (random.integers(ROWS, size=200), ()),
        "none": (np.zeros([0], int), (0, WIDTH)),
    }
    found = {}
    for op, dtype, index, form in itertools.product(OPS, DTYPES, (tf.int32, tf.int64), forms):
        indices, shape = forms[form]
        table = tf.Variable(numbers((ROWS, WIDTH), dtype, 2))
        for step in range(2):
            scatter(op, table, tf.constant(indices, index), numbers(shape, dtype, 3 + step))
        found[f"{op} {dtype.name} {index.name} {form}"] = encode(table.numpy())
    return found


def errors() -> dict[str, str]:
    indices = np.arange(300) % ROWS
    indices[200] = ROWS
    calls = {
        "range": lambda: scatter("Add", tf.Variable(tf.zeros([ROWS])), indices, tf.ones([300])),
        "shape": lambda: scatter(
            "Add", tf.Variable(tf.zeros([ROWS])), [0] * 300, tf.ones([300, 2])
        ),
        "no value": lambda: tf.raw_ops.ResourceScatterAdd(
            resource=tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[ROWS], shared_name="none"),
            indices=[0],
            updates=[1.0],
        ),
    }
    found = {}
    for name, call in calls.items():
        try:
            call()
            found[name] = "no error"
        except tf.errors.OpError as error:
            found[name] = f"{type(error).__name__}: {error.message}"
    return found


def strings() -> list[str]:
    table = tf.Variable(["a", "b", "c"])
    scatter("Update", table, [2, 0], ["d", "e"])
    return [text.decode() for text in table.numpy()]


def held() -> dict[str, Any]:
    """Values that a script has read do not change, whatever holds them."""
    table = tf.Variable(tf.zeros([ROWS, WIDTH]))
    reads = []
    for step in range(4):
        value = table.read_value()
        # Shares the tensor's memory.
        reads.append(value if step % 2 else np.asarray(memoryview(value)))
        scatter("Add", table, np.arange(ROWS), tf.ones([ROWS, WIDTH]))
    return {
        "reads": [sorted(set(np.ravel(read).tolist())) for read in reads],
        "table": sorted(set(np.ravel(table).tolist())),
    }


def beside_copy_on_read() -> list[float]:
    """Another op has set copy-on-read mode, and this library's ops follow it."""
    table = tf.Variable(tf.zeros([ROWS]))
    scatter("Add", table, [0], [1.0])
    tf.raw_ops.ResourceScatterNdAdd(ref=table.handle, indices=[[1]], updates=[2.0])
    value = table.read_value()
    scatter("Add", table, [0, 1], [10.0, 10.0])
    scatter("Add", table, np.arange(300) % 2, tf.ones([300]))
    table.assign_add(tf.ones([ROWS]))
    return [*value[:3].numpy().tolist(), *table[:3].numpy().tolist()]


def threads() -> dict[str, Any]:
    """Two threads add 1 to all rows and two read: no addition is lost, no read is partial."""
    rows, times = 64, 300
    table = tf.Variable(tf.zeros([rows, 1024]))
    ones, indices = tf.ones([rows, 1024]), tf.range(rows)
    reads: list[tf.Tensor] = []

    def add() -> None:
        for _ in range(times):
            scatter("Add", table, indices, ones)

    def read() -> None:
        for _ in range(times // 10):
            reads.append(table.read_value())

    workers = [threading.Thread(target=work) for work in (add, read, add, read)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    mixed = sum(len(set(np.ravel(value).tolist())) > 1 for value in reads)
    return {"reads": len(reads), "mixed": mixed, "table": sorted(set(np.ravel(table).tolist()))}


def main() -> None:
    single_threaded_ops(inter_op=2)
    result(
        {
            "tables": tables(),
            "errors": errors(),
            "strings": strings(),
            "held": held(),
            "beside": beside_copy_on_read(),
            "threads": threads(),
        }
    )


main()
