"""Ranks that start with different variables, slots and counters: one training step in each way.

    start.py CHECKPOINT_FOLDER

Each case prints the loss of the first forward pass (on data that all ranks share), the distance of
variable, slot and counter from their values if rank 0's are used, and their bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from common import encode, result, single_threaded_ops
from tensorflow.core.framework import attr_value_pb2
from tensorflow.core.protobuf import config_pb2
from tensorflow.mpi._src.average import scope

v1 = tf.compat.v1
RANK, SIZE = tf.mpi.rank(), tf.mpi.size()
FOLDER = Path(sys.argv[1])
RATE, MOMENTUM = 0.1, 0.9
SAVED = 99  # the seed of the checkpoint's contents
COMMON = np.random.default_rng(7).normal(size=(4, 3)).astype(np.float32)


def values(seed: int) -> tuple[np.ndarray, np.ndarray, int]:
    """The initial (variable, slot, counter) of a rank."""
    random = np.random.default_rng(seed)
    w, m = (random.normal(size=(3, 2)).astype(np.float32) for _ in range(2))
    return w, m, 1000 * seed


def data(rank: int) -> np.ndarray:
    return np.random.default_rng(500 + rank).normal(size=(4, 3)).astype(np.float32)


def report(loss: Any, w: Any, m: Any, counter: Any, seed: int = 0) -> dict[str, Any]:
    """The result of one step, and of the same step from values(seed) with the mean gradient."""
    w0, m0, counter0 = values(seed)
    parts = [data(rank) for rank in range(SIZE)]
    gradient = np.mean([x.T @ x @ w0 * (2 / (4 * 2)) for x in parts], axis=0)
    m1 = MOMENTUM * m0 + gradient
    return {
        "loss": abs(float(loss) - float(np.square(COMMON @ w0).sum())),
        "variable": float(np.abs(w - (w0 - RATE * m1)).max()),
        "slot": float(np.abs(m - m1).max()),
        "counter": int(counter) - (counter0 + 1),
        "bytes": [encode(w), encode(m), int(counter)],
    }


def common_loss(w: Any) -> Any:
    return tf.reduce_sum(tf.square(tf.matmul(COMMON, w)))


def own_loss(w: Any) -> Any:
    return tf.reduce_mean(tf.square(tf.matmul(data(RANK), w)))


class SessionModel:
    """A variable, its momentum and a global step in their own graph."""

    def __init__(self, use_resource: bool, seed: int) -> None:
        w, m, counter = values(seed)
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.w = v1.get_variable("w", initializer=w, use_resource=use_resource)
            self.step = v1.get_variable(
                "global_step",
                initializer=np.int64(counter),
                trainable=False,
                use_resource=use_resource,
            )
            self.loss = common_loss(self.w)
            with tf.control_dependencies([self.loss]):
                optimizer = v1.train.MomentumOptimizer(RATE, MOMENTUM)
                self.train = optimizer.minimize(own_loss(self.w), global_step=self.step)
            self.slot = optimizer.get_slot(self.w, "momentum")
            self.begin = tf.group(v1.global_variables_initializer())
            with tf.control_dependencies([self.begin]):
                self.fill = v1.assign(self.slot, m)
            self.saver = v1.train.Saver()


def session_case(use_resource: bool, restored: bool = False) -> dict[str, Any]:
    checkpoint = str(FOLDER / f"v1-{use_resource}")
    if restored and RANK == 0:
        saved = SessionModel(use_resource, SAVED)
        with v1.Session(graph=saved.graph) as session:
            session.run(saved.fill)
            saved.saver.save(session, checkpoint)
    model = SessionModel(use_resource, RANK)
    with v1.Session(graph=model.graph) as session:
        session.run(model.fill)
        if restored and RANK == 0:
            model.saver.restore(session, checkpoint)
        loss, _ = session.run([model.loss, model.train])
        after = session.run([model.w, model.slot, model.step])
    w, m, counter = after
    return report(loss, w, m, counter, SAVED if restored else 0)


def raw_case(function: bool) -> Callable[[], dict[str, Any]]:
    """A raw op, whose slot and counter are plain variables. Returns a function that trains them."""
    w, m, counter = (tf.Variable(value) for value in values(RANK))

    def step() -> Any:
        with tf.GradientTape() as tape:
            first = common_loss(w)
            own = own_loss(w)
        tf.raw_ops.ResourceApplyMomentum(
            var=w.handle, accum=m.handle, lr=RATE, grad=tape.gradient(own, w), momentum=MOMENTUM
        )
        counter.assign_add(1)
        return first

    def run() -> dict[str, Any]:
        loss = tf.function(step)() if function else step()
        return report(loss, w.numpy(), m.numpy(), counter.numpy())

    return run


class Eager(tf.Module):
    """A variable trained by a compat.v1 optimizer; the first update creates its slot."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.w = tf.Variable(values(seed)[0])
        self.step = tf.Variable(np.int64(values(seed)[2]))
        self.optimizer = v1.train.MomentumOptimizer(RATE, MOMENTUM)

    def train(self) -> Any:
        with tf.GradientTape() as tape:
            first = common_loss(self.w)
            own = own_loss(self.w)
        pairs = [(tape.gradient(own, self.w), self.w)]
        self.optimizer.apply_gradients(pairs, global_step=self.step)
        return first

    def state(self) -> list[Any]:
        slot = self.optimizer.get_slot(self.w, "momentum")
        return [encode(self.w.numpy()), encode(slot.numpy()), int(self.step.numpy())]


def checkpoint_case(function: bool) -> Callable[[], dict[str, Any]]:
    """Trains and saves a model, restores a second one on rank 0 only. Returns what trains both."""
    first, second = Eager(RANK), Eager(10 + RANK)
    train_first = tf.function(first.train)
    train_second = tf.function(second.train) if function else second.train
    for _ in range(3):
        train_first()
    if RANK == 0:
        path = tf.train.Checkpoint(model=first).write(str(FOLDER / f"v2-{function}"))
        tf.train.Checkpoint(model=second).read(path)

    def run() -> dict[str, Any]:
        losses = [float(train_first()), float(train_second())]
        return {"losses": losses, "first": first.state(), "second": second.state()}

    return run


def generator_case() -> list[int]:
    """The state of a random generator differs by rank."""
    generator = tf.random.Generator.from_seed(1 + RANK)
    w = tf.Variable([1.0 + RANK])

    @tf.function
    def step() -> Any:
        noise = generator.normal([])
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w) * noise
        pairs = [(tape.gradient(loss, w), w)]
        v1.train.GradientDescentOptimizer(RATE).apply_gradients(pairs)
        return noise

    return [int(step().numpy().view(np.int32)), int(w.numpy().view(np.int32)[0])]


def other_variable_case() -> str:
    """A kernel created for a synchronized variable meets one that is not: the error."""
    with tf.Graph().as_default(), v1.Session() as session:
        known = v1.get_variable("known", initializer=[1.0], use_resource=True)
        other = v1.get_variable(
            "other",
            initializer=[1.0 + RANK],
            use_resource=True,
            trainable=False,
            collections=["no session's"],
        )
        train = [v1.train.GradientDescentOptimizer(RATE).minimize(tf.reduce_sum(known))]
        with scope.already_averaged():
            train.append(
                tf.raw_ops.ResourceApplyGradientDescent(var=other.handle, alpha=RATE, delta=[1.0])
            )
        states = attr_value_pb2.AttrValue.ListValue(s=[b"*|known"])
        train[1]._set_attr("_tf_mpi_states", attr_value_pb2.AttrValue(list=states))
        session.run([known.initializer, other.initializer])
        session.run(train[0])
        try:
            session.run(train[1])
        except tf.errors.FailedPreconditionError as error:
            return error.message
        return "no error"


def imported_case(use_resource: bool) -> list[int]:
    """Imports a trained graph under the same names, without its collections."""
    model = SessionModel(use_resource, RANK)
    with v1.Session(graph=model.graph) as session:
        session.run(model.fill)
        session.run(model.train)
    with tf.Graph().as_default(), v1.Session() as session:
        tf.import_graph_def(model.graph.as_graph_def(), name="")
        session.run(model.fill.name.removesuffix(":0"))
        session.run(model.train.name)
        return encode(session.run("w/Read/ReadVariableOp:0" if use_resource else "w:0"))


def callable_case(use_resource: bool, options: bool = False) -> dict[str, Any]:
    """A callable trains after another session did whose variables have the same names."""
    models = [SessionModel(use_resource, RANK) for _ in range(2)]
    sessions = [v1.Session(graph=model.graph) for model in models]
    for session, model in zip(sessions, models):
        session.run(model.fill)
    sessions[0].run(models[0].train)
    _, model = models
    _, session = sessions
    if options:
        wanted = config_pb2.CallableOptions(fetch=[model.loss.name], target=[model.train.name])
        train = session._make_callable_from_options(wanted)
    else:
        train = session.make_callable([model.loss, model.train])
    loss = train()[0]
    after = session.run([model.w, model.slot, model.step])
    for one in sessions:
        one.close()
    return report(loss, *after)


def averaged_case() -> list[Any]:
    """A moving average's initializer passes the variable, not yet initialized, to a function."""
    w, _, _ = values(RANK)
    with tf.Graph().as_default(), v1.Session() as session:
        variable = v1.get_variable("w", initializer=w, use_resource=True)
        train = v1.train.GradientDescentOptimizer(RATE).minimize(own_loss(variable))
        with tf.control_dependencies([train]):
            average = tf.train.ExponentialMovingAverage(0.5).apply([variable])
        session.run(v1.global_variables_initializer())
        session.run(average)
        return [encode(value) for value in session.run(v1.global_variables())]


def looked_at_case(use_resource: bool) -> list[int]:
    """Only rank 0 passes its variable to a function that does not train, before any step.

    There is also a variable of strings, which are not compared.
    """
    w, _, _ = values(RANK)
    with tf.Graph().as_default(), v1.Session() as session:
        variable = v1.get_variable("w", initializer=w, use_resource=use_resource)
        words = v1.get_variable("words", initializer=["a", "bc"], trainable=False)
        seen = tf.cond(variable[0, 0] > 0, lambda: variable + 0, lambda: variable + 0)
        train = v1.train.GradientDescentOptimizer(RATE).minimize(own_loss(variable))
        session.run([variable.initializer, words.initializer])
        if RANK == 0:
            session.run(seen)
        tf.mpi.barrier()
        session.run(train)
        return encode(session.run(variable))


def conditional_case() -> list[int]:
    """A tf.cond trains a variable, with rows that no Apply op handles."""
    w, _, _ = values(RANK)
    with tf.Graph().as_default(), v1.Session() as session:
        variable = v1.get_variable("w", initializer=w, use_resource=True)

        def update() -> Any:
            row = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([RANK]), tf.constant([3, 2]))
            train = v1.train.GradientDescentOptimizer(RATE).apply_gradients([(row, variable)])
            with tf.control_dependencies([train]):
                return tf.constant(1)

        wanted = v1.placeholder(tf.bool, [])
        done = tf.cond(wanted, update, lambda: tf.constant(0))
        session.run(variable.initializer)
        assert session.run(done, {wanted: True}) == 1
        return encode(session.run(variable))


def made_in_step_case(function: bool, draw: Callable[[], Any]) -> list[list[int]]:
    """A variable created by the first step: its value during the step, and after it."""
    made: list[Any] = []

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            if not made:
                made.append(tf.Variable(draw() * 0.5))
            loss = tf.reduce_mean(tf.square(tf.matmul(x, made[0])))
        start = tf.identity(made[0])
        optimizer.apply(tape.gradient(loss, made), made)
        return start

    optimizer = tf.keras.optimizers.SGD(RATE)
    data = np.random.default_rng(8).normal(size=(8, 8)).astype(np.float32)
    run = tf.function(step) if function else step
    starts = [run(x) for x in tf.mpi.shard(tf.data.Dataset.from_tensors(data), batched=True)]
    return [encode(starts[0].numpy()), encode(made[0].numpy())]


def made_in_step_cases() -> dict[str, Any]:
    """In functions and eager code: with different draws per rank, and draws possibly per sample."""

    def own() -> Any:
        return tf.random.stateless_normal([8, 3], [RANK, 1])

    def noise() -> Any:
        return tf.random.stateless_normal([8, 1], [3, 2])

    def sequence() -> Any:
        return tf.random.normal([8, 1], seed=3)

    cases = {"own": made_in_step_case(True, own), "sequence": made_in_step_case(True, sequence)}
    for function in (False, True):
        cases[f"noise, {function}"] = made_in_step_case(function, noise)
    return {"made in a step": cases, "one process": encode((noise() * 0.5).numpy())}


def failed_case(kind: str) -> list[int]:
    """A variable's first update fails on all ranks. Its value after the second."""
    variable = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[2], shared_name=f"failed, {kind}")

    def start() -> None:
        tf.raw_ops.AssignVariableOp(resource=variable, value=tf.constant([1.0 + RANK, 2.0]))

    def update(elements: int) -> None:
        gradient = tf.ones([elements])
        tf.raw_ops.ResourceApplyGradientDescent(var=variable, alpha=RATE, delta=gradient)

    if kind != "no value":
        start()
    try:
        update(2 + RANK if kind == "other shapes" else 2)
    except tf.errors.OpError:
        start()
        update(2)
    return encode(tf.raw_ops.ReadVariableOp(resource=variable, dtype=tf.float32).numpy())


def main() -> None:
    single_threaded_ops()
    eager = {"eager": raw_case(function=False), "checkpoint eager": checkpoint_case(function=False)}
    printed: dict[str, Any] = {name: run() for name, run in eager.items()}  # the first eager tape
    printed["late eager"] = raw_case(function=False)()
    printed["failed"] = {kind: failed_case(kind) for kind in ("no value", "other shapes")}
    printed["function"] = raw_case(function=True)()
    printed["checkpoint function"] = checkpoint_case(function=True)()
    for use_resource in (False, True):
        kind = "resource" if use_resource else "ref"
        printed[f"session {kind}"] = session_case(use_resource)
        printed[f"imported {kind}"] = imported_case(use_resource)
        printed[f"looked at {kind}"] = looked_at_case(use_resource)
        printed[f"callable {kind}"] = callable_case(use_resource)
        printed[f"callable {kind}, options"] = callable_case(use_resource, options=True)
        printed[f"session {kind}, restored"] = session_case(use_resource, restored=True)
    printed["averaged"] = averaged_case()
    printed["conditional"] = conditional_case()
    printed["generator"] = generator_case()
    printed["other variable"] = other_variable_case()
    # Last, because draws in a loop over divided data are per sample.
    printed |= made_in_step_cases()
    result(printed)


main()
