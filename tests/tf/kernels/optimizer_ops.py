"""Every dense optimizer op with every dtype of its kernel: prints variables and slots.

    optimizer_ops.py ref | resource | function | eager [STEPS]      default 50 steps

Under a launcher each rank has its part of every batch, and different initial values. As a plain
process it is the reference on the whole batch. For half and bfloat16, whose sums are rounded, it
uses the mean of the two parts' gradients, taken in float32 and rounded once. For complex64 it also
uses the mean of the two parts: squares have any sign, and Adadelta turns a difference in the last
bit into 2e-4.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from common import encode, place, result, single_threaded_ops
from tensorflow.python.framework import kernels, op_def_registry

v1 = tf.compat.v1
BATCH, SHAPE = 8, (4, 3)
MODE = sys.argv[1]
STEPS = int(sys.argv[2]) if sys.argv[2:] else 50
RANK, SIZE = place()
NARROW = (tf.float16, tf.bfloat16)
IN_PARTS = (*NARROW, tf.complex64)

NUMBERS = {
    "lr": 0.01,
    "alpha": 0.01,  # for gradient descent; 1 for AddSign
    "beta1_power": 0.5,
    "beta2_power": 0.6,
    "beta1": 0.9,
    "beta2": 0.99,
    "epsilon": 1e-3,
    "rho": 0.9,
    "momentum": 0.9,
    "l1": 1e-3,
    "l2": 1e-3,
    "l2_shrinkage": 1e-3,
    "lr_power": -0.5,
    "logbase": 1.0,
    "sign_decay": 0.9,
    "beta": 0.9,
}


class Case:
    """One op with one dtype: its variable, slots, data and update."""

    def __init__(self, op: str, dtype: Any, attributes: dict[str, bool], number: int) -> None:
        self.op, self.dtype, self.attributes = op, dtype, attributes
        self.key = " ".join([op, dtype.name, *attributes])
        self.arguments = [arg.name for arg in op_def_registry.get(op).input_arg]
        known = {*NUMBERS, "grad", "delta", "global_step"}
        self.states = [name for name in self.arguments if name not in known]
        self.random = np.random.default_rng(number)
        self.x = self.draw((STEPS, BATCH, SHAPE[0]))
        self.y = self.draw((STEPS, BATCH, SHAPE[1]))
        self.variables: dict[str, Any] = {}

    def draw(self, shape: tuple[int, ...]) -> np.ndarray:
        values = self.random.normal(size=shape)
        if self.dtype.is_complex:
            values = values + 1j * self.random.normal(size=shape)
        return values.astype(self.dtype.as_numpy_dtype)

    def create(self) -> None:
        """Rank 0's values equal the plain process's; the others' must not be used."""
        random = np.random.default_rng(1000 + RANK)
        for state in self.states:
            if state == "var":
                value = random.normal(size=SHAPE)
            else:  # positive, with no negative variance
                value = random.uniform(0.1, 0.3, size=SHAPE)
            value = value.astype(self.dtype.as_numpy_dtype)
            if MODE in ("ref", "resource"):
                self.variables[state] = v1.get_variable(
                    f"{self.key}/{state}".replace(" ", "_"),
                    initializer=tf.constant(value),
                    use_resource=MODE == "resource",
                )
            else:  # all have the same name, so they are told apart by the order of training
                self.variables[state] = tf.Variable(value)

    def loss(self, x: Any, y: Any) -> Any:
        if self.dtype in NARROW:  # elementwise, so that no sum is rounded in another order
            return tf.reduce_sum(self.variables["var"] * (tf.reshape(x, [-1])[0] * y[0]))
        error = tf.matmul(x, self.variables["var"]) - y
        return tf.reduce_mean(tf.math.real(error * tf.math.conj(error)))

    def update(self, gradient: Any, step: Any) -> Any:
        def argument(name: str) -> Any:
            if name in self.states:
                variable = self.variables[name]
                return variable._ref() if MODE == "ref" else variable.handle
            if name in ("grad", "delta"):
                return gradient
            if name == "global_step":
                return step
            number = 1.0 if name == "alpha" and "AddSign" in self.op else NUMBERS[name]
            return tf.constant(number, self.dtype)

        arguments = {name: argument(name) for name in self.arguments}
        return getattr(tf.raw_ops, self.op)(**arguments, **self.attributes)

    def parts(self) -> list[slice]:
        """The slices of a batch for which this process computes gradients."""
        if SIZE > 1:
            own = BATCH // SIZE
            return [slice(RANK * own, (RANK + 1) * own)]
        if self.dtype in IN_PARTS:
            return [slice(0, BATCH // 2), slice(BATCH // 2, BATCH)]
        return [slice(0, BATCH)]


def mean(gradients: list[Any]) -> Any:
    """The mean of two parts, computed like the ranks': narrow types are summed in float32."""
    if len(gradients) == 1:
        return gradients[0]
    dtype = gradients[0].dtype
    a, b = (tf.cast(g, tf.float32) if dtype in NARROW else g for g in gradients)
    return tf.cast((a + b) * 0.5, dtype)


def make_cases() -> list[Case]:
    prefix = "Apply" if MODE == "ref" else "ResourceApply"
    cases: list[Case] = []
    for op in dir(tf.raw_ops):
        if not (op.startswith(prefix) and op[len(prefix)].isupper()):
            continue
        constraints = [
            constraint
            for kernel in kernels.get_registered_kernels_for_op(op).kernel
            if kernel.device_type == "CPU"
            for constraint in kernel.constraint
        ]
        names = {tf.as_dtype(t).name for c in constraints for t in c.allowed_values.list.type}
        attributes = {attr.name for attr in op_def_registry.get(op).attr}
        for name in sorted(names):
            cases.append(Case(op, tf.as_dtype(name), {}, len(cases)))
        for attribute in sorted(attributes & {"use_locking", "use_nesterov"}):
            cases.append(Case(op, tf.float32, {attribute: True}, len(cases)))
    return cases


def gradients_of(case: Case, data: list[tuple[Any, Any]]) -> Any:
    def one(x: Any, y: Any) -> Any:
        if MODE in ("ref", "resource"):
            return tf.gradients(case.loss(x, y), case.variables["var"])[0]
        with tf.GradientTape() as tape:
            loss = case.loss(x, y)
        return tape.gradient(loss, case.variables["var"])

    return mean([one(x, y) for x, y in data])


def run_session(cases: list[Case]) -> Callable[[Any], Any]:
    step_tensor = v1.placeholder(tf.int64, [])
    feeds, updates = [], []
    for case in cases:
        data = [
            tuple(v1.placeholder(case.dtype, [None, width]) for width in SHAPE)
            for _ in case.parts()
        ]
        feeds.append(data)
        updates.append(case.update(gradients_of(case, data), step_tensor))
    train = tf.group(*(getattr(update, "op", update) for update in updates))
    session = v1.Session(config=v1.ConfigProto(inter_op_parallelism_threads=2))
    session.run(v1.global_variables_initializer())
    for step in range(STEPS):
        feed = {step_tensor: step + 1}
        for case, data in zip(cases, feeds):
            for (x, y), part in zip(data, case.parts()):
                feed[x], feed[y] = case.x[step][part], case.y[step][part]
        session.run(train, feed)
    return session.run


def run_eagerly(cases: list[Case]) -> Callable[[Any], Any]:
    def train(data: list[list[tuple[Any, Any]]], step: Any) -> None:
        for case, own in zip(cases, data):
            case.update(gradients_of(case, own), step)

    call = tf.function(train) if MODE == "function" else train
    for step in range(STEPS):
        data = [
            [(tf.constant(c.x[step][p]), tf.constant(c.y[step][p])) for p in c.parts()]
            for c in cases
        ]
        call(data, tf.constant(step + 1, tf.int64))
    return lambda variables: {name: variable.numpy() for name, variable in variables.items()}


def trained(cases: list[Case]) -> dict[str, Any]:
    """{case: {state: array}} after all steps."""
    values = run_session(cases) if MODE in ("ref", "resource") else run_eagerly(cases)
    printed = {}
    for case in cases:
        arrays = values(case.variables)
        printed[case.key] = {name: encode(array) for name, array in arrays.items()}
    return printed


def main() -> None:
    single_threaded_ops(inter_op=2)
    if MODE in ("ref", "resource"):
        v1.disable_eager_execution()
    cases = make_cases()
    for case in cases:
        case.create()
    result(trained(cases))


if __name__ == "__main__":
    main()
