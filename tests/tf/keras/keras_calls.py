"""fit, evaluate and predict of unbuilt models, and on batches that are not samples; and a
CallbackList that the script drives itself. Prints the results.

Arguments: keras or tf_keras, then names of cases, default all.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

import keras as keras_3
import numpy as np
import tensorflow as tf
import tf_keras
from common import encode, result, single_threaded_ops
from tensorflow.mpi._src.runtime import c_api

keras = {"keras": keras_3, "tf_keras": tf_keras}[sys.argv[1]]
RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0))
X = np.random.default_rng(3).normal(size=(20, 5)).astype(np.float32)


def unbuilt(compute: Any) -> Any:
    """Weights that every rank draws itself, with another seed."""
    keras.utils.set_random_seed(1 + RANK)
    model = keras.Sequential([keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return encode(np.asarray(compute(model))), [encode(weight) for weight in model.get_weights()]


def evaluated() -> Any:
    return unbuilt(lambda model: model.evaluate(X, X[:, :1], verbose=0))


def predicted() -> Any:
    return unbuilt(lambda model: model.predict(np.ones((6, 5), np.float32), verbose=0))


class Scaled(keras.layers.Layer):  # type: ignore[name-defined]
    """Its build changes the type of one number and adds another."""

    def __init__(self) -> None:
        super().__init__()
        self.axis: Any = -1

    def build(self, shape: Any) -> None:
        self.axis, self.width = [len(shape) - 1], int(shape[-1])
        self.kernel = self.add_weight(shape=[self.width], initializer="ones", name="kernel")
        self.built = True

    def call(self, x: Any) -> Any:
        return x * self.kernel / self.width + float(sum(self.axis))


class Built(keras.Model):  # type: ignore[name-defined]
    """Built by its first step, in fit, as models of tf_keras and Transformers are."""

    def __init__(self) -> None:
        super().__init__()
        self.scaled, self.out = Scaled(), keras.layers.Dense(1, kernel_initializer="ones")

    def build(self, shape: Any) -> None:
        self.half = float(shape[-1]) / 2
        super().build(shape)

    def call(self, x: Any) -> Any:
        return self.out(self.scaled(x)) * self.half


def built() -> Any:
    keras.utils.set_random_seed(1)
    model = Built()
    model.compile("sgd", "mse")
    history = model.fit(X, X[:, :1], batch_size=5, epochs=2, shuffle=False, verbose=0)
    return history.history["loss"], [encode(weight) for weight in model.get_weights()]


class Adversarial(keras.Model):  # type: ignore[name-defined]
    """Its step creates variables that call() does not reach, with one optimizer for all."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.critic = keras.layers.Dense(5), keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.critic(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, _ = data
        with tf.GradientTape() as tape:
            gap = self.critic(x) - self.critic(self.generator(x[:, :2]))
            loss = tf.reduce_mean(tf.square(gap - 1.0))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return {"gap": loss}


def adversarial() -> Any:
    keras.utils.set_random_seed(1)
    model = Adversarial()
    model.compile("sgd")
    history = model.fit(X, X[:, :1], batch_size=10, epochs=2, shuffle=False, verbose=0)
    return history.history["gap"], [encode(weight) for weight in model.get_weights()]


class Pool(keras.Model):  # type: ignore[name-defined]
    """Returns one result for a whole graph."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(4, kernel_initializer="ones")

    def call(self, nodes: Any) -> Any:
        return tf.reduce_mean(tf.tanh(self.dense(nodes)), 0, keepdims=True)


class Edges(Pool):
    def call(self, inputs: Any) -> Any:
        nodes, edges = inputs
        return tf.gather(self.dense(nodes), edges)


class Nodes(Pool):
    def call(self, inputs: Any) -> Any:
        return self.dense(inputs[0])


class Graph(Pool):
    def call(self, inputs: Any) -> Any:
        nodes, adjacency = inputs
        return tf.matmul(adjacency, self.dense(nodes))


class Pairs(Pool):
    def train_step(self, data: Any) -> Any:
        anchors, positives = data[0], data[1]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.dense(anchors) - self.dense(positives)) ** 2)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return {"loss": loss}


class Labeled(Pool):
    """Semi-supervised: a few samples with labels, and more without, in each batch."""

    def train_step(self, data: Any) -> Any:
        (x, y), others = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.dense(x)[:, 0] - y) ** 2)
            loss += tf.reduce_mean(self.dense(others) ** 2)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return {"loss": loss}


def zipped() -> Any:
    labeled = tf.data.Dataset.from_tensor_slices((X, X[:, 0])).repeat().batch(2)
    others = tf.data.Dataset.from_tensor_slices(X).batch(5).map(lambda x: x + 1)
    return whole(Labeled(), tf.data.Dataset.zip((labeled, others)).prefetch(1))


def whole(model: Any, dataset: Any) -> Any:
    model.compile("sgd", "mse")
    history = model.fit(dataset, epochs=3, verbose=0).history
    return history["loss"], [encode(weight) for weight in model.get_weights()]


def pooled() -> Any:
    answer = np.zeros((1, 4), np.float32)
    return whole(Pool(), tf.data.Dataset.from_tensors((X, answer)))


EDGES = np.random.default_rng(5).integers(0, 20, 57).astype(np.int32)


def gathered() -> Any:
    answer = np.zeros((57, 4), np.float32)
    return whole(Edges(), tf.data.Dataset.from_tensors(((X, EDGES), answer)))


def fixed() -> Any:
    """A layer that keeps its state between batches, so that they need a fixed size."""
    keras.utils.set_random_seed(1)
    keywords = {"batch_shape" if keras is keras_3 else "batch_input_shape": (4, 5, 1)}
    layers = [keras.layers.LSTM(3, stateful=True), keras.layers.Dense(1)]
    model = keras.Sequential([keras.layers.InputLayer(**keywords), *layers])
    model.compile("sgd", "mse")
    history = model.fit(X[..., None], X[:, :1], batch_size=4, epochs=3, shuffle=False, verbose=0)
    tested = model.evaluate(X[..., None], X[:, :1], batch_size=4, verbose=0)
    predicted = model.predict(X[..., None], batch_size=4, verbose=0)
    weights = [encode(weight) for weight in [*model.get_weights(), predicted]]
    return [*history.history["loss"], tested], weights


def failure(model: Any, dataset: Any) -> Any:
    model.compile("sgd", "mse")
    try:
        model.fit(dataset, verbose=0)
    except Exception as error:
        return "\n".join([str(error), *getattr(error, "__notes__", [])])
    return "none"


def graph() -> Any:
    adjacency = np.random.default_rng(7).integers(0, 2, (20, 20)).astype(np.float32)
    answer = np.zeros((20, 4), np.float32)
    return whole(Graph(), tf.data.Dataset.from_tensors(((X, adjacency), answer)))


def pairs() -> Any:
    return failure(Pairs(), tf.data.Dataset.from_tensors(np.stack([X, -X])))


def lengths_of_data() -> Any:
    """Nodes and edges of a graph: only the batches, not the signature, give their numbers."""
    signature = (
        (tf.TensorSpec((None, 5)), tf.TensorSpec((None,), tf.int32)),
        tf.TensorSpec((None, 4)),
    )
    elements = [((X, EDGES), np.zeros((57, 4), np.float32))]
    return tf.data.Dataset.from_generator(lambda: iter(elements), output_signature=signature)


def gathered_late() -> Any:
    return whole(Edges(), lengths_of_data())


def lengths_seen_late() -> Any:
    """A model that looks at each sample separately."""
    return failure(Nodes(), lengths_of_data())


def other_error() -> Any:
    """An error unrelated to shapes, which must not be explained."""

    def fails(y: Any, guess: Any) -> Any:
        raise RuntimeError("of the loss")

    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", fails)
    try:
        model.fit(X, X[:, :1], verbose=0)
    except Exception as error:
        return "\n".join([str(error), *getattr(error, "__notes__", [])])
    return "none"


def driven() -> Any:
    """A custom loop that calls callbacks, which must not wait for other ranks."""
    model = keras.Sequential([keras.layers.Input((5,)), keras.layers.Dense(1)])
    stop = keras.callbacks.EarlyStopping("loss", patience=1)
    callbacks = keras.callbacks.CallbackList([stop], add_history=True, model=model)
    for _ in range(1 + RANK):
        callbacks.on_train_begin()
        for epoch in range(2):
            callbacks.on_epoch_begin(epoch)
            callbacks.on_train_batch_begin(0)
            callbacks.on_train_batch_end(0, {"loss": 1.0})
            callbacks.on_epoch_end(epoch, {"loss": 1.0})
        callbacks.on_test_begin()
        callbacks.on_test_end()
        callbacks.on_train_end()
    without_model = keras.callbacks.CallbackList([])
    without_model.on_train_begin()
    without_model.on_train_batch_end(0, {"loss": 1.0})
    without_model.on_test_begin()
    without_model.on_test_batch_end(0, {"loss": 1.0})
    without_model.on_test_end()
    without_model.on_predict_begin()
    without_model.on_predict_end()
    without_model.on_train_end()
    return model.stop_training


class Root(keras.losses.Loss):  # type: ignore[name-defined]
    def call(self, y: Any, guess: Any) -> Any:
        return tf.sqrt(tf.reduce_mean((y.to_tensor(shape=[None, 2]) - guess) ** 2))


def ragged() -> Any:
    """A loss of Keras's own and a whole-batch loss; only tf_keras supports ragged targets."""
    y = tf.RaggedTensor.from_row_lengths(np.repeat(X[:, 0], 2), [2] * len(X))
    dataset = tf.data.Dataset.from_tensor_slices((X, y)).batch(4)
    losses = []
    for loss in ("mse", Root()):
        model = keras.Sequential(
            [keras.layers.Input((5,)), keras.layers.Dense(2, kernel_initializer="ones")]
        )
        model.compile("sgd", loss)
        losses += model.fit(dataset, verbose=0).history["loss"]
    return losses


class Reader(keras.callbacks.Callback):  # type: ignore[name-defined]
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.last = logs["loss"]


class Silent(keras.callbacks.Callback):  # type: ignore[name-defined]
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.names = set(logs) if logs else None


def exchanges() -> Any:
    """The number of exchanges in a fit of five batches, for each callback."""
    model = keras.Sequential([keras.layers.Input((5,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    made = []
    plain = keras.callbacks.Callback
    for callback in (plain, plain, Silent, Reader):
        before = c_api.stats()["completed"]
        model.fit(X, X[:, :1], batch_size=4, verbose=0, callbacks=[callback()])
        made.append(c_api.stats()["completed"] - before)
    return made[1:]  # the first one synchronizes variables


class Counter(keras.callbacks.Callback):  # type: ignore[name-defined]
    calls = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.calls += 1


def tuned() -> int:
    """The number of calls of the train function, if the ranks would tune it differently."""
    from tf_keras.src.utils.steps_per_execution_tuning import StepsPerExecutionTuner as Tuner

    model = keras.Sequential([keras.layers.Input((5,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution="auto")
    Tuner._measure_and_tune = lambda self: self._steps_per_execution.assign(2 + RANK)
    counter = Counter()
    model.fit(X, X[:, :1], batch_size=4, epochs=3, verbose=0, callbacks=[counter])
    return counter.calls


def left_behind() -> int:
    """The number of objects left after a round of fit, evaluate and predict, the third."""
    model = keras.Sequential([keras.layers.Input((5,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    dataset = tf.data.Dataset.from_tensor_slices((X, X[:, :1])).map(lambda x, y: (x, -y)).batch(4)
    counts = []
    for _ in range(3):
        for given in ((X, X[:, :1]), (dataset,)):
            model.fit(*given, verbose=0)
            model.evaluate(*given, verbose=0)
            model.predict(given[0], verbose=0)
        gc.collect()
        counts.append(len(gc.get_objects()))
    return counts[2] - counts[1]


CASES = {
    "left behind": left_behind,
    "evaluated": evaluated,
    "predicted": predicted,
    "built": built,
    "adversarial": adversarial,
    "pooled": pooled,
    "gathered": gathered,
    "gathered late": gathered_late,
    "zipped": zipped,
    "fixed": fixed,
    "driven": driven,
    "exchanges": exchanges,
    "ragged": ragged,
    "tuned": tuned,
    "graph": graph,
    "pairs": pairs,
    "lengths seen late": lengths_seen_late,
    "other error": other_error,
}


def main() -> None:
    single_threaded_ops()
    ranks = "OMPI_COMM_WORLD_SIZE" in os.environ  # a script that uses tf.mpi knows about ranks
    names = [name for name in CASES if ranks or name != "exchanges"]
    if keras is keras_3:
        names = [name for name in names if name not in ("ragged", "tuned")]
    result({name: CASES[name]() for name in sys.argv[2:] or names})


if __name__ == "__main__":
    main()
