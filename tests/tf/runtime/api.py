"""Every function of tf.mpi on every kind of value. Prints what was wrong, by case.

Values are small integers, so that every rank knows every result; a correct case prints "". With
averaging off the results are those of a single rank.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import tensorflow as tf
from common import place, result

v1 = tf.compat.v1
RANK, SIZE = place()
FLOATS = ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]
NOT_COMPLEX = ("min", "max", "product")
INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FOLDS: dict[str, Callable[[Any], Any]] = {
    "average": lambda values: np.mean(values, axis=0),
    "sum": lambda values: np.sum(values, axis=0),
    "min": lambda values: np.min(values, axis=0),
    "max": lambda values: np.max(values, axis=0),
    "product": lambda values: np.prod(values, axis=0),
}
printed: dict[str, str] = {}


class Case:
    """A collective on one dtype: this rank's value, the call, and the expected result."""

    def __init__(self, kind: str, dtype: str, op: str = "", root: int = 0) -> None:
        self.name = f"{kind} {dtype} {op or root}"
        self.dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
        self.kind, self.op, self.root = kind, op, root

    def value(self, rank: int = RANK) -> np.ndarray:
        """From 1 to 3, so that a product over four ranks fits into int8; `rank` rows for
        allgather."""
        rows = rank if self.kind == "allgather" else 2
        numbers = np.arange(rows * 3).reshape(rows, 3) + 2 * rank
        return (numbers % 2 if self.dtype == np.bool_ else numbers % 3 + 1).astype(self.dtype)

    def call(self, value: Any) -> Any:
        if self.kind == "allreduce":
            return tf.mpi.allreduce(value, self.op)
        if self.kind == "allgather":
            return tf.mpi.allgather(value)
        return tf.mpi.broadcast(value, self.root)

    def expected(self) -> np.ndarray:
        values = [self.value(rank) for rank in range(SIZE)]
        if self.kind == "allgather":
            return np.concatenate(values)
        if self.kind == "broadcast":
            return values[self.root]
        wide = np.complex128 if self.dtype.kind == "c" else np.float64
        return FOLDS[self.op]([v.astype(wide) for v in values]).astype(self.dtype)

    def check(self, way: str, got: Any, kind: type) -> None:
        wrong = "" if isinstance(got, kind) else f"a {type(got).__name__}; "
        array, expected = np.asarray(got), self.expected()
        if array.dtype.name != expected.dtype.name or array.shape != expected.shape:
            wrong += f"{array.dtype} {array.shape}"
        elif not np.allclose(array.astype("D"), expected.astype("D"), rtol=self.tolerance()):
            wrong += f"{array.tolist()} is not {expected.tolist()}"
        printed[f"{way}: {self.name}"] = wrong

    def tolerance(self) -> float:
        """Allows for rounding in averages."""
        inexact = self.op == "average" and self.dtype.name in FLOATS
        return 2 * float(ml_dtypes.finfo(self.dtype).eps) if inexact else 0.0


def cases() -> list[Case]:
    found = []
    for dtype in [*FLOATS, *INTS]:
        for op in FOLDS:
            if (op == "average" and dtype in INTS) or (dtype[0] == "c" and op in NOT_COMPLEX):
                continue
            found.append(Case("allreduce", dtype, op))
    for dtype in [*FLOATS, *INTS, "bool"]:
        found.append(Case("allgather", dtype))
        found.append(Case("broadcast", dtype, root=SIZE - 1))
    return found + [Case("broadcast", "float32", root=root) for root in range(SIZE - 1)]


# --- Each case in every way of calling -----------------------------------------------------------


def at_once(all_cases: list[Case]) -> None:
    for case in all_cases:
        value = case.value()
        case.check("numpy", case.call(value), np.ndarray)
        case.check("fortran order", case.call(np.asfortranarray(value)), np.ndarray)
        swapped = value.astype(value.dtype.newbyteorder()) if value.dtype.kind in "iufc" else value
        case.check("other byte order", case.call(swapped), np.ndarray)
        case.check("tensor", case.call(tf.constant(value)), tf.Tensor)
        case.check("variable", case.call(tf.Variable(value)), tf.Tensor)


def in_function(all_cases: list[Case]) -> None:
    @tf.function
    def everything(values: list[Any]) -> list[Any]:
        return [case.call(value) for case, value in zip(all_cases, values)]

    values = [tf.constant(case.value()) for case in all_cases]
    for way in ("function", "function again"):
        for case, got in zip(all_cases, everything(values)):
            case.check(way, got, tf.Tensor)


def in_session(all_cases: list[Case]) -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        inputs = [v1.placeholder(tf.as_dtype(c.dtype), [None, 3]) for c in all_cases]
        fetches = [case.call(x) for case, x in zip(all_cases, inputs)]
        feed = {x: case.value() for case, x in zip(all_cases, inputs)}
        for case, got in zip(all_cases, session.run(fetches, feed)):
            case.check("session", got, np.ndarray)


# --- Special cases
# ---------------------------------------------------------------------------------


def equal(name: str, got: Any, expected: Any) -> None:
    printed[name] = "" if np.array_equal(got, expected) else f"{got} is not {expected}"


def python_values() -> None:
    ranks = range(SIZE)
    equal("a list", tf.mpi.allreduce([RANK + 1.0, 2.0]), [sum(ranks) / SIZE + 1, 2.0])
    equal("a number", tf.mpi.allreduce(RANK, "sum"), sum(ranks))
    equal("nested lists", tf.mpi.allgather([[RANK]] * 2), [[r] for r in ranks for _ in range(2)])
    equal("nothing", tf.mpi.allreduce(np.zeros((0, 3))), np.zeros((0, 3)))
    equal("no rows anywhere", tf.mpi.allgather(np.zeros((0, 3))), np.zeros((0, 3)))


def retrace_on_rank_0() -> None:
    """A batch of another size on one rank makes it retrace, and it still meets the other ranks."""

    @tf.function
    def total(x: Any) -> Any:
        looped = tf.constant(0.0)
        for _ in tf.range(2):
            looped += tf.mpi.allreduce(tf.reduce_sum(x), "sum")
            if looped > 0:
                looped += tf.mpi.allreduce(1.0 * tf.reduce_sum(x), "sum")
        return tf.mpi.allreduce(tf.reduce_sum(x), "sum"), looped, tf.mpi.allgather(x)

    for step in range(3):
        rows = [step + 1 if rank == 0 else 1 for rank in range(SIZE)]
        got, looped, gathered = total(tf.ones([rows[RANK]]))
        expected = [sum(rows), 4 * sum(rows)] + [1] * sum(rows)
        equal(f"retrace {step}", [got, looped, *gathered], expected)
    traced = total.experimental_get_tracing_count()
    equal("tracings", traced, 3 if RANK == 0 else 1)


def variables() -> None:
    mine = [tf.Variable([RANK, 1.5]), tf.Variable(np.int64(10 * RANK)), tf.Variable([True] * RANK)]
    mine = mine[:2] if SIZE > 1 else mine
    for root in range(SIZE):
        mine[0].assign([RANK, 1.5])
        tf.mpi.broadcast_variables(mine, root=root)
        equal(f"variables of {root}", mine[0].numpy(), [root, 1.5])
    equal("keeps the first root's value", mine[1].numpy(), 0)


def barriers() -> None:
    tf.mpi.barrier()
    start = time.monotonic()
    if RANK == SIZE - 1:
        time.sleep(0.5)
    tf.mpi.barrier()
    waited = time.monotonic() - start
    printed["barrier"] = "" if waited > 0.4 or SIZE == 1 else f"only {waited} s"
    names = ["a", "b"] if RANK % 2 else ["b", "a"]
    threads = [threading.Thread(target=tf.mpi.barrier, args=[name]) for name in names]
    for thread in threads:
        thread.start()
        time.sleep(0.05)
    for thread in threads:
        thread.join()


def errors() -> dict[str, str]:
    """Errors by call, with type and text: first those on any number of ranks, then those on two."""
    calls: dict[str, Callable[[], Any]] = {
        "bad op": lambda: tf.mpi.allreduce(1.0, "mean"),
        "average of ints": lambda: tf.mpi.allreduce(np.ones(2, np.int32)),
        "average of an int tensor": lambda: tf.mpi.allreduce(tf.ones([2], tf.int32)),
        "max of complex": lambda: tf.mpi.allreduce(np.ones(2, np.complex64), "max"),
        "product of complex": lambda: tf.mpi.allreduce(tf.ones([2], tf.complex64), "product"),
        "sum of bools": lambda: tf.mpi.allreduce([True], "sum"),
        "allgather of a number": lambda: tf.mpi.allgather(1.0),
        "bad root": lambda: tf.mpi.broadcast(1.0, root=SIZE),
        "text": lambda: tf.mpi.broadcast(["text"]),
        "other shapes": lambda: tf.mpi.allreduce(np.ones(RANK + 1)),
        "other ops": lambda: tf.mpi.allreduce(1.0, "max" if RANK else "min"),
        "other roots": lambda: tf.mpi.broadcast(1.0, root=RANK),
        "other columns": lambda: tf.mpi.allgather(tf.ones([2, RANK + 1])),
    }
    found = {}
    for name, call in calls.items():
        try:
            found[name] = f"returned {call()}"
        except (ValueError, TypeError, tf.errors.OpError) as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def main() -> None:
    all_cases = cases()
    at_once(all_cases)
    in_function(all_cases)
    in_session(all_cases)
    for more in (python_values, retrace_on_rank_0, variables, barriers):
        more()
    mpi = tf.mpi
    place = [mpi.is_enabled(), mpi.rank(), mpi.size(), mpi.local_rank(), mpi.local_size()]
    wrong = {case: text for case, text in printed.items() if text}
    result({"place": place, "cases": len(printed), "wrong": wrong, "errors": errors()})


main()
