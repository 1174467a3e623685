"""Sparse updates with so many rows that the ranks divide them: prints the results by case.

The last rank ends first; the others continue for a step.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from common import place, result, single_threaded_ops
from tensorflow.mpi._src.runtime import c_api

v1 = tf.compat.v1
RANK, SIZE = place()
TABLE, ROWS, STEPS, RATE, START = 5000, 3000, 4, 0.05, 0.1


def own(rank: int, step: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Values and indices with duplicates, many of which are on several ranks."""
    random = np.random.default_rng([rank, step, width])
    values = random.normal(size=(ROWS, width)).astype("f")
    return values, random.integers(0, TABLE, ROWS, dtype=np.int32)


def initial(width: int, rank: int = RANK) -> np.ndarray:
    return np.random.default_rng([rank, width]).normal(size=(TABLE, width)).astype("f")


def expected(width: int, ranks: int, steps: int, table: Any = None, accumulator: Any = None) -> Any:
    """Adagrad in numpy for the whole batch: the table and its accumulator."""
    if table is None:
        table = initial(width, 0).astype(float)
        accumulator = np.full(table.shape, START)
    for step in range(steps):
        gradient = np.zeros(table.shape)
        for rank in range(ranks):
            values, indices = own(rank, step, width)
            np.add.at(gradient, indices, values.astype(float) / ranks)
        accumulator += gradient**2
        table -= RATE * gradient / np.sqrt(accumulator)
    return table, accumulator


def expected_by_row(width: int, ranks: int, steps: int) -> Any:
    """Adagrad in numpy for a raw op, which processes rows one by one, even with equal indices."""
    table = initial(width, 0).astype(float)
    accumulator = np.full(table.shape, START)
    for step in range(steps):
        for rank in range(ranks):
            for value, index in zip(*own(rank, step, width)):
                gradient = value.astype(float) / ranks
                accumulator[index] += gradient**2
                table[index] -= RATE * gradient / np.sqrt(accumulator[index])
    return table, accumulator


def summary(found: tuple[Any, Any], wanted: tuple[Any, Any], requests: int) -> dict[str, Any]:
    return {
        "digest": hashlib.sha256(
            b"".join(np.asarray(part).tobytes() for part in found)
        ).hexdigest(),
        "distance": max(float(np.abs(f - w).max()) for f, w in zip(found, wanted)),
        "requests": requests,
    }


def completed(run: Callable[[], Any]) -> int:
    """The number of requests of this rank during `run`."""
    before = c_api.stats()["completed"]
    run()
    return c_api.stats()["completed"] - before


class Session:
    """compat.v1's AdagradOptimizer on a table of `width` columns."""

    def __init__(self, width: int, use_resource: bool, change: Callable[[Any], Any] | None = None):
        self.width = width
        with tf.Graph().as_default():
            self.values = v1.placeholder(tf.float32, [None, width])
            self.indices = v1.placeholder(tf.int32, [None])
            table = v1.get_variable(
                f"table{width}", initializer=initial(width), use_resource=use_resource
            )
            optimizer = v1.train.AdagradOptimizer(RATE, initial_accumulator_value=START)
            loss = tf.reduce_sum(tf.gather(table, self.indices) * self.values)
            pairs = optimizer.compute_gradients(loss, [table])
            assert isinstance(pairs[0][0], tf.IndexedSlices)
            if change is not None:
                pairs = [(change(pairs[0][0]), table)]
            self.train = optimizer.apply_gradients(pairs)
            self.state = [table, optimizer.get_slot(table, "accumulator")]
            self.session = v1.Session()
            self.session.run(v1.global_variables_initializer())

    def step(self, step: int) -> None:
        values, indices = own(RANK, step, self.width)
        self.session.run(self.train, {self.values: values, self.indices: indices})

    def summary(self, wanted: tuple[Any, Any], requests: int) -> dict[str, Any]:
        return summary(tuple(self.session.run(self.state)), wanted, requests)


def in_session(width: int, use_resource: bool) -> dict[str, Any]:
    session = Session(width, use_resource)
    session.step(0)  # has more requests, which synchronize the table
    requests = [completed(functools.partial(session.step, step)) for step in range(1, STEPS)]
    assert len(set(requests)) == 1, requests
    return session.summary(expected(width, SIZE, STEPS), requests[0])


def eager() -> dict[str, Any]:
    width = 64
    table, accumulator = tf.Variable(initial(width)), tf.Variable(tf.fill([TABLE, width], START))

    def step(number: int) -> None:
        values, indices = own(RANK, number, width)
        tf.raw_ops.ResourceSparseApplyAdagrad(
            var=table.handle, accum=accumulator.handle, lr=RATE, grad=values, indices=indices
        )

    step(0)
    requests = [completed(functools.partial(step, number)) for number in range(1, STEPS)]
    found = (table.numpy(), accumulator.numpy())
    return summary(found, expected_by_row(width, SIZE, STEPS), requests[-1])


def two_ops_of_one_table() -> int:
    """They are unordered, so every rank runs both on all rows: the requests of a step."""
    width = 64
    with tf.Graph().as_default():
        table = v1.get_variable("both", initializer=initial(width), use_resource=True)
        values, indices = (tf.constant(part) for part in own(RANK, 0, width))
        rows = tf.IndexedSlices(values, indices, tf.constant([TABLE, width]))
        ops = []
        for number in range(2):
            optimizer = v1.train.AdagradOptimizer(RATE, START, name=f"adagrad{number}")
            ops.append(optimizer.apply_gradients([(rows, table)]))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(ops)
            return completed(lambda: session.run(ops))


def rows_that_differ() -> list[str]:
    """Rows changed on rank 0 after their average: a third less, and another index."""

    def fewer(rows: tf.IndexedSlices) -> tf.IndexedSlices:
        cut = ROWS // 3 if RANK == 0 else 0
        return tf.IndexedSlices(rows.values[cut:], rows.indices[cut:], rows.dense_shape)

    def another(rows: tf.IndexedSlices) -> tf.IndexedSlices:
        # The first row gets the second's index: the same number of rows.
        first = rows.indices[1:2] if RANK == 0 else rows.indices[:1]
        indices = tf.concat([first, rows.indices[1:]], 0)
        return tf.IndexedSlices(rows.values, indices, rows.dense_shape)

    texts = []
    for change in (fewer, another):
        session = Session(64, True, change)
        try:
            session.step(0)
            texts.append("none")
        except tf.errors.OpError as error:
            texts.append(f"{type(error).__name__}: {error.message}")
    return texts


def without_the_last(session: Session) -> dict[str, Any]:
    """Without the rank that owned the last rows."""
    table, accumulator = expected(64, SIZE, 1)
    requests = completed(lambda: session.step(0))
    return session.summary(expected(64, SIZE - 1, 1, table, accumulator), requests)


def main() -> None:
    single_threaded_ops()
    found: dict[str, Any] = {
        "resource": in_session(64, True),
        "ref": in_session(50, False),  # rows that do not fill cache lines
        "eager": eager(),
        "two_ops": two_ops_of_one_table(),
        "differ": rows_that_differ(),
    }
    session = Session(64, True)
    session.step(0)
    if RANK != SIZE - 1:
        found["alone"] = without_the_last(session)
    result(found)


main()
