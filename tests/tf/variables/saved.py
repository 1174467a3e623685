"""Trains, saves in the middle, and trains on; or loads the saved model and trains on from there.

    saved.py train DIR   rank 0 writes a SavedModel, a tf.train.Checkpoint and a v1 checkpoint with
                         its MetaGraph
    saved.py load DIR    also in official TensorFlow, alone on the whole batches; under a launcher
    the other ranks spoil what they loaded, because rank 0's values must be used

Prints by kind the variables where they were saved or loaded, and at the end.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from common import encode, place, result, single_threaded_ops

v1 = tf.compat.v1
MODE, DIRECTORY = sys.argv[1], Path(sys.argv[2])
RANK, SIZE = place() if hasattr(tf, "mpi") else (0, 1)
BATCH, BEFORE, AFTER = 8, 6, 4


def batches() -> list[tuple[np.ndarray, np.ndarray]]:
    """This rank's part of each batch."""
    random = np.random.default_rng(7)
    wholes = [random.normal(size=(BATCH, 5)).astype("f") for _ in range(BEFORE + AFTER)]
    return [(x[RANK::SIZE, :4], x[RANK::SIZE, 4:]) for x in wholes]


# --- Eager variables trained by a function
# ---------------------------------------------------------


class Model(tf.Module):
    """Two layers, equally named parts that are trained in no fixed order, and an optimizer with
    slots.

    It does not track the optimizer, because no TensorFlow can load a SavedModel that holds a
    compat.v1 optimizer with slots. To be saved, it holds the slots as variables.
    """

    def __init__(self) -> None:
        super().__init__()
        initial = np.random.default_rng(RANK).normal(size=(3, 4, 4)).astype("f")
        self.hidden = tf.Variable(initial[0], name="hidden")
        self.out = tf.Variable(initial[1][:, :1], name="out")
        self.parts = [tf.Variable(row, name="part") for row in initial[2]]
        self.parts += [tf.Variable(row, name="part") for row in initial[2] + 1]
        self.steps = tf.Variable(0, name="steps", dtype=tf.int64, trainable=False)
        optimizer = v1.train.AdamOptimizer(0.05)
        self.optimizer = lambda: optimizer

    @tf.function(input_signature=[tf.TensorSpec([None, 4])])
    def predict(self, x: Any) -> Any:
        return tf.matmul(tf.nn.tanh(tf.matmul(x, self.hidden)), self.out)

    @tf.function(input_signature=[tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1])])
    def train(self, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.predict(x) - y))
        trained = [self.hidden, self.out]
        gradients = tape.gradient(loss, trained)
        self.optimizer().apply_gradients(zip(gradients, trained))
        for index, part in enumerate(self.parts):
            work = tf.reduce_sum(tf.random.uniform([100 * (index * 5 % 8)]))
            delta = (index + 1) * tf.reduce_mean(y) * tf.ones_like(part) + 1e-30 * work
            tf.raw_ops.ResourceApplyGradientDescent(var=part.handle, alpha=0.1, delta=delta)
        # A second Apply op on the same variable: it has a number, as a private attribute.
        decay = 0.01 * tf.convert_to_tensor(self.out)
        tf.raw_ops.ResourceApplyGradientDescent(var=self.out.handle, alpha=0.1, delta=decay)
        tf.raw_ops.ResourceApplyGradientDescent(var=self.out.handle, alpha=0.1, delta=decay)
        self.steps.assign_add(1)
        return loss


def state(model: Any) -> list[Any]:
    parts = [part.numpy() for part in model.parts]
    return [encode(v) for v in (model.hidden.numpy(), model.out.numpy(), parts)]


def train_model() -> dict[str, Any]:
    model = Model()
    for x, y in batches()[:BEFORE]:
        model.train(x, y)
    saved = state(model)
    if RANK == 0:
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer())
        checkpoint.save(str(DIRECTORY / "checkpoint" / "c"))
        model.slots = model.optimizer().variables()
        tf.saved_model.save(model, str(DIRECTORY / "model"), signatures=model.predict)
    return {"saved": saved, "end": train_on(model)}


def train_on(model: Any) -> list[Any]:
    for x, y in batches()[BEFORE:]:
        model.train(x, y)
    return state(model)


def load_model() -> dict[str, Any]:
    model = tf.saved_model.load(str(DIRECTORY / "model"))
    (predicted,) = model.signatures["serving_default"](tf.ones([2, 4])).values()
    assert np.array_equal(predicted, model.predict(tf.ones([2, 4])))
    saved = state(model)
    if RANK != 0:
        for variable in (model.hidden, model.out, *model.parts):
            variable.assign(tf.zeros_like(variable))
    return {"saved": saved, "end": train_on(model)}


def load_checkpoint() -> dict[str, Any]:
    model = Model()
    path = tf.train.latest_checkpoint(str(DIRECTORY / "checkpoint"))
    status = tf.train.Checkpoint(model=model, optimizer=model.optimizer()).restore(path)
    status.assert_existing_objects_matched()
    saved = state(model)
    end = train_on(model)  # creates the slots
    status.assert_consumed()
    return {"saved": saved, "end": end}


# --- A Session ------------------------------------------------------------------------------------

ENDS = "ends of the graph"  # the collection in which a script finds its tensors again


def build() -> None:
    x, y = v1.placeholder(tf.float32, [None, 4]), v1.placeholder(tf.float32, [None, 1])
    initial = np.random.default_rng(10 + RANK).normal(size=(4, 1)).astype("f")
    kernel = v1.get_variable("kernel", initializer=initial, use_resource=False)
    bias = v1.get_variable("bias", [1], use_resource=True)
    step = v1.train.get_or_create_global_step()
    loss = tf.reduce_mean(tf.square(tf.matmul(x, kernel) + bias - y))
    train = v1.train.MomentumOptimizer(0.05, 0.9).minimize(loss, step)
    for end in (x, y, train, kernel.value(), bias.value(), step.value()):
        v1.add_to_collection(ENDS, end)


def steps(session: Any, some: list[tuple[np.ndarray, np.ndarray]]) -> list[Any]:
    x, y, train, *values = v1.get_collection(ENDS)
    for batch in some:
        session.run(train, dict(zip((x, y), batch)))
    return [encode(value) for value in session.run(values)]


def train_session() -> dict[str, Any]:
    with tf.Graph().as_default(), v1.Session() as session:
        build()
        session.run(v1.global_variables_initializer())
        saved = steps(session, batches()[:BEFORE])
        if RANK == 0:
            v1.train.Saver().save(session, str(DIRECTORY / "v1" / "model"), BEFORE)
        return {"saved": saved, "end": steps(session, batches()[BEFORE:])}


def load_session() -> dict[str, Any]:
    path = tf.train.latest_checkpoint(str(DIRECTORY / "v1"))
    with tf.Graph().as_default(), v1.Session() as session:
        v1.train.import_meta_graph(f"{path}.meta").restore(session, path)
        return {"saved": steps(session, []), "end": steps(session, batches()[BEFORE:])}


def main() -> None:
    single_threaded_ops(inter_op=4)
    if MODE == "train":
        trained = train_model()
        result({"model": trained, "checkpoint": trained, "session": train_session()})
    else:
        loaded = {"model": load_model(), "checkpoint": load_checkpoint(), "session": load_session()}
        result(loaded | {"version": tf.__version__, "stock": not hasattr(tf, "mpi")})


main()
