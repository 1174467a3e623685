"""Every sparse optimizer op, five steps of rows: prints variables and slots by case.

Under a launcher each rank has its own rows, in varying numbers and with duplicates, and different
initial values. As a plain process it is the reference for 2 and 3 ranks: it concatenates their rows
in rank order, and a stock kernel processes them one by one, including duplicates.

With the argument `wide` rows are so wide that the ranks divide their update; prints five columns of
each array.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tensorflow as tf
from common import encode, place, result, single_threaded_ops
from tensorflow.python.framework import kernels, op_def_registry

v1 = tf.compat.v1
STEPS, ROWS, WIDTH = 5, 12, 20_000 if sys.argv[1:] == ["wide"] else 5
EMPTY_STEP = 3  # no rank has rows in this step
RANK, SIZE = place()
KINDS = [(tf.float32, tf.int64), (tf.float64, tf.int32), (tf.bfloat16, tf.int32)]
NUMBERS = {
    "lr": 0.05,
    "alpha": 0.05,
    "epsilon": 1e-3,
    "rho": 0.9,
    "momentum": 0.9,
    "l1": 1e-3,
    "l2": 1e-3,
    "l2_shrinkage": 1e-3,
    "lr_power": -0.5,
}
KNOWN = {*NUMBERS, "grad", "indices", "global_step"}


def slices(case: str, dtype: Any, step: int, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """One rank's values and indices: varying numbers, with duplicates, and often none."""
    random = np.random.default_rng([len(case), ord(case[-1]), step, rank])
    count = 0 if step == EMPTY_STEP or (rank + step) % 4 == 3 else 3 + 4 * rank + step
    indices = random.integers(0, ROWS - 2, size=count)
    return random.normal(size=(count, WIDTH)).astype(dtype), indices


def own(case: str, dtype: Any, step: int, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    if SIZE > 1:
        return slices(case, dtype, step, RANK)
    parts = [slices(case, dtype, step, rank) for rank in range(ranks)]
    values = np.concatenate([v for v, _ in parts]).astype(float) / ranks
    return values, np.concatenate([i for _, i in parts])


class Case:
    """One op with one dtype of rows and one of indices."""

    def __init__(self, op: str, mode: str, kind: tuple[Any, Any], attributes: dict[str, bool]):
        self.op, self.mode, self.attributes = op, mode, attributes
        self.dtype, self.index_dtype = kind
        self.key = " ".join([op, mode, self.dtype.name, *attributes])
        self.arguments = [arg.name for arg in op_def_registry.get(op).input_arg]
        self.variables: dict[str, Any] = {}
        random = np.random.default_rng(100 + RANK)  # rank 0's values equal the reference's
        for name in self.arguments:
            if name not in KNOWN:
                value = random.uniform(0.1, 0.3, size=(ROWS, WIDTH))
                self.variables[name] = self.variable(name, value)

    def variable(self, name: str, value: np.ndarray) -> Any:
        initial = tf.constant(value, self.dtype)
        if self.mode == "eager":
            return tf.Variable(initial)
        name = f"{self.key}/{name}".replace(" ", "_")
        return v1.get_variable(name, initializer=initial, use_resource=self.mode == "resource")

    def data(self, step: int, ranks: int) -> list[np.ndarray]:
        dtype = self.dtype.as_numpy_dtype
        values, indices = own(self.key, dtype, step, ranks)
        return [values.astype(dtype), indices.astype(self.index_dtype.as_numpy_dtype)]

    def update(self, grad: Any, indices: Any) -> Any:
        def argument(name: str) -> Any:
            if name in self.variables:
                variable = self.variables[name]
                return variable._ref() if self.mode == "ref" else variable.handle
            if name == "global_step":
                return tf.constant(2, tf.int64)
            return {"grad": grad, "indices": indices}.get(name, None)

        arguments = {name: argument(name) for name in self.arguments}
        for name in NUMBERS.keys() & arguments.keys():
            arguments[name] = tf.constant(NUMBERS[name], self.dtype)
        return getattr(tf.raw_ops, self.op)(**arguments, **self.attributes)


def has_kernel(op: str, dtype: Any) -> bool:
    found = kernels.get_registered_kernels_for_op(op).kernel
    return any(dtype in c.allowed_values.list.type for k in found for c in k.constraint)


def make_cases(mode: str) -> list[Case]:
    prefix = "SparseApply" if mode == "ref" else "ResourceSparseApply"
    cases = []
    for op in dir(tf.raw_ops):
        if op.startswith(prefix) and op[len(prefix)].isupper():
            kinds = [kind for kind in KINDS if has_kernel(op, kind[0].as_datatype_enum)]
            kinds = kinds if mode != "eager" else kinds[:1]
            cases += [Case(op, mode, kind, {}) for kind in kinds]
            names = {attr.name for attr in op_def_registry.get(op).attr}
            extra = sorted(names & {"use_locking", "use_nesterov"})
            cases += [Case(op, mode, KINDS[0], {name: True}) for name in extra if mode != "eager"]
    return cases


def in_session(mode: str, ranks: int) -> dict[str, Any]:
    with tf.Graph().as_default(), v1.Session() as session:
        cases = make_cases(mode)
        feeds = [
            [v1.placeholder(c.dtype, [None, WIDTH]), v1.placeholder(c.index_dtype, [None])]
            for c in cases
        ]
        updates = [case.update(*feed) for case, feed in zip(cases, feeds)]
        train = tf.group(*(getattr(update, "op", update) for update in updates))
        session.run(v1.global_variables_initializer())
        for step in range(STEPS):
            pairs = [zip(feed, case.data(step, ranks)) for case, feed in zip(cases, feeds)]
            session.run(train, {t: value for pair in pairs for t, value in pair})
        return {c.key: session.run(c.variables) for c in cases}


def in_eager(ranks: int) -> dict[str, Any]:
    cases = make_cases("eager")
    for step in range(STEPS):
        for case in cases:
            case.update(*map(tf.constant, case.data(step, ranks)))
    return {c.key: {name: v.numpy() for name, v in c.variables.items()} for c in cases}


def run(ranks: int) -> dict[str, Any]:
    found = {**in_session("ref", ranks), **in_session("resource", ranks), **in_eager(ranks)}
    return {
        key: {name: encode(value[:, :: WIDTH // 5]) for name, value in states.items()}
        for key, states in found.items()
    }


def main() -> None:
    single_threaded_ops(inter_op=2)
    result(run(SIZE) if SIZE > 1 else {str(ranks): run(ranks) for ranks in (2, 3)})


main()
