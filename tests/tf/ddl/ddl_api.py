"""ddl's functions and operators on ranks with different inputs."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "horovod"))

import ddl
import numpy as np
import tensorflow as tf
from checks import check, equal, raises, run_all
from tensorflow.mpi._src.ddl import ops
from tensorflow.mpi._src.runtime import c_api

RANK, SIZE = ddl.rank(), ddl.size()
RANKS = np.arange(SIZE) + 1.0
v1 = tf.compat.v1


def averages() -> int:
    return c_api.stats()["gradients"] if SIZE > 1 else 0


@check
def who():
    import os

    assert RANK == int(os.environ.get("OMPI_COMM_WORLD_RANK", 0))
    assert SIZE == int(os.environ.get("OMPI_COMM_WORLD_SIZE", 1))
    assert (ddl.local_rank(), ddl.local_size(), ddl.local_gpuid()) == (RANK, SIZE, RANK)
    equal(ddl.Init(0), [RANK, SIZE, RANK, SIZE, RANK])
    equal(ddl.Init(0, mode=f"b:{SIZE}x1"), [RANK, SIZE, RANK, SIZE, RANK])


@check
def modes():
    ddl.init(f"-mode b:{SIZE}x1 -dump_iter 100")
    ddl.init(f"-mode r:{SIZE}x1x1")
    ddl.init(f"-mode 2:{SIZE}x1")
    for options, words in (
        (f"-mode b:{SIZE + 1}x1", "or pass a mode whose numbers multiply to"),
        (f"-mode 3:{SIZE}x1", "declares 3 levels"),
        ("-mode 'b", "DDL options '-mode 'b' are not accepted: No closing quotation"),
        ("-mode b", "is not accepted; accepted: LETTER:AxBx..., such as b:4x2"),
        ("-mode b:0x1", "is not accepted"),
        ("-mode", "DDL option -mode needs a value"),
        ("-fast", "DDL option '-fast' is unknown; accepted:"),
        ("-dump_iter x", "-dump_iter x is not accepted; accepted: a number of steps"),
    ):
        raises(ValueError, lambda: ddl.init(options), words)  # noqa: B023


@check
def bcast():
    equal(ddl.bcast(tf.fill([3], RANK)), [0, 0, 0])
    equal(tf.function(lambda: ddl.Bcast(tf.fill([2], RANK)))(), [0, 0])


@check
def all_reduce_n():
    mine = [tf.fill([3], RANK + 1.0), tf.fill([2, 2], -2.0 * (RANK + 1))]
    for op, fold in (("avg", np.mean), ("sum", np.sum)):
        for options in ({}, {"mpi": True}, {"check": 1e-6}):
            for run in (lambda f: f, tf.function):
                a, b = run(lambda: ddl.AllReduceN(mine, op, **options))()  # noqa: B023
                equal(a, np.full(3, fold(RANKS)), 1e-6)
                equal(b, np.full((2, 2), -2 * fold(RANKS)), 1e-6)
    equal(ddl.all_reduce_n(mine, op="sum")[0], np.full(3, RANKS.sum()), 1e-6)
    raises(ValueError, lambda: ddl.AllReduceN(mine, "max"), "op='max'; accepted: sum, avg")
    refused = "check=2.0 is not accepted; accepted: from 0 to 1"
    raises(ValueError, lambda: ddl.AllReduceN(mine, check=2.0), refused)


@check
def a_wrong_sum_is_found():
    """The check reports the difference of a deliberately wrong sum."""
    right = ops._reduced
    ops._reduced = lambda tensors, op: [one + 0.25 for one in right(tensors, op)]
    try:
        mine = [tf.fill([3], RANK + 1.0)]
        for words in (
            "0.25",
            "ddl.AllReduceN: tensor 0 differs from MPI_Allreduce's result by (x)",
        ):
            raises(tf.errors.InvalidArgumentError, lambda: ddl.AllReduceN(mine, check=0.01), words)
        equal(ddl.AllReduceN(mine, check=1.0)[0], np.full(3, RANKS.mean() + 0.25), 1e-6)
    finally:
        ops._reduced = right


@check
def optimizers_average_once():
    for reduces, times in ((False, 1), (True, 1), ("sum", SIZE)):
        w = tf.Variable(tf.zeros([2]))
        optimizer = tf.keras.optimizers.SGD(1.0)

        @tf.function
        def step():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(w) * (RANK + 1)  # noqa: B023
            pairs = [(tape.gradient(loss, w), w)]  # noqa: B023
            if reduces:  # noqa: B023
                pairs = ddl.grads_reduce(pairs, average=reduces != "sum")  # noqa: B023
            optimizer.apply_gradients(pairs)  # noqa: B023

        step()
        before = averages()
        step()
        assert averages() - before == (1 if SIZE > 1 else 0), (reduces, averages() - before)
        equal(w, np.full(2, -2 * times * RANKS.mean()), 1e-5)


@check
def grads_reduce_eagerly():
    w = tf.Variable([0.0])
    pairs = ddl.grads_reduce([(tf.constant([RANK + 1.0]), w), (None, w)])
    equal(pairs[0][0], [RANKS.mean()], 1e-6)
    assert pairs[1][0] is None and pairs[0][1] is w


@check
def sessions():
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", initializer=np.zeros(2, np.float32))
        optimizer = v1.train.GradientDescentOptimizer(1.0)
        pairs = optimizer.compute_gradients(tf.reduce_sum(w) * (RANK + 1))
        train = optimizer.apply_gradients(pairs)
        session.run(v1.global_variables_initializer())
        session.run(train)
        equal(session.run(w), np.full(2, -RANKS.mean()), 1e-6)


@check
def callbacks():
    model = tf.keras.Sequential([tf.keras.layers.Input((1,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.set_weights([np.full((1, 1), RANK + 1.0), np.zeros(1)])
    seen: list[float] = []

    class Look(tf.keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            seen.append(float(self.model.get_weights()[0][0, 0]))

    made = [ddl.DDLCallback(), ddl.DDLGlobalVariablesCallback(), Look()]
    x = np.ones((4, 1), np.float32)
    history = model.fit(x, x * RANK, batch_size=4, verbose=0, callbacks=made)
    equal(seen, [1.0])
    losses = ddl.AllReduceN([tf.constant(history.history["loss"])], "avg")[0]
    equal(losses, history.history["loss"], 1e-6)
    logs = {"f1": np.array([RANK + 1.0, 2.0]), "loss": np.float32(RANK)}
    ddl.DDLCallback().on_epoch_end(0, logs)  # F1Score has a value for each class
    equal(logs["f1"], [RANKS.mean(), 2.0])
    equal(logs["loss"], RANKS.mean() - 1)


run_all(sys.argv[1:])
