"""Losses, steps and metrics that need the whole batch: prints the results.

Arguments: tf_keras, eager, jit; names of cases, by default all except those of whole_batch_said.py.
One process and N ranks run the same code. 33 samples in batches of 16 leave one sample for the last
batch, so that a rank has none.
"""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import whole_batch_metrics
import whole_batch_norms
import whole_batch_said
from common import encode, keras_of, result, single_threaded_ops

keras: Any = keras_of(sys.argv)
layers: Any = keras.layers
LEGACY, EAGER, JIT = ("tf_keras" in sys.argv, "eager" in sys.argv, "jit" in sys.argv)
MODE = {"run_eagerly": EAGER, **({"jit_compile": True} if JIT else {})}
drawn = np.random.default_rng(0)
X = drawn.normal(size=(70, 8)).astype(np.float32)
Y = (np.tanh(X @ drawn.normal(size=(8, 1))) + 0.1).astype(np.float32)
YES = (Y > 0).astype(np.float32)


def net(outputs: int = 1, activation: str | None = None) -> Any:
    return keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(6, "tanh"),
            layers.Dense(outputs, activation),
        ]
    )


def fit(model: Any, samples: int = 33, y: np.ndarray = Y, **more: Any) -> dict[str, Any]:
    samples = 64 if JIT else samples  # a compiled step needs static shapes
    options = {"x": X[:samples], "batch_size": 16, "epochs": 2, **more}
    history = model.fit(y=y[:samples], shuffle=False, verbose=0, **options).history
    numbers = {name: encode(np.asarray(values, np.float32)) for name, values in history.items()}
    weights = [encode(np.asarray(weight, np.float32)) for weight in model.get_weights()]
    return numbers | {f"weight {number}": weight for number, weight in enumerate(weights)}


def compiled(model: Any, loss: Any, **more: Any) -> Any:
    model.compile(keras.optimizers.SGD(0.1), loss, **MODE, **more)
    return model


def rmse(y: Any, guess: Any) -> Any:
    return tf.sqrt(tf.reduce_mean(tf.square(y - guess)))


def root_of_mean() -> dict[str, Any]:
    return fit(compiled(net(), rmse, metrics=["mae"]))


def keras_dice() -> dict[str, Any]:
    if LEGACY:  # tf_keras has none
        return {}
    return fit(compiled(net(1, "sigmoid"), keras.losses.Dice()), y=YES)


class Dice(keras.losses.Loss):
    """A custom class whose value is a scalar."""

    def call(self, y: Any, guess: Any) -> Any:
        both = tf.reduce_sum(y * guess)
        return 1 - (2 * both + 1) / (tf.reduce_sum(y) + tf.reduce_sum(guess) + 1)


def own_dice() -> dict[str, Any]:
    return fit(compiled(net(1, "sigmoid"), Dice()), y=YES)


def sum_of_samples() -> dict[str, Any]:
    loss = keras.losses.MeanSquaredError(reduction="sum")
    model = net()
    model.compile(keras.optimizers.SGD(0.01), loss, **MODE)
    return fit(model)


def weighted() -> dict[str, Any]:
    weights: dict[str, Any] = {} if JIT else {"sample_weight": np.abs(X[:33, 0])}
    found = fit(compiled(net(), rmse, weighted_metrics=["mae"]), **weights)
    if not LEGACY:
        loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
        again = fit(compiled(net(), loss), **weights)
        found |= {f"{name} again": value for name, value in again.items()}
    return found


def masked() -> dict[str, Any]:
    """The mean is over unmasked elements, whose number differs by rank."""
    return _of_words("sparse_categorical_crossentropy", metrics=["accuracy"])


def ignored() -> dict[str, Any]:
    """The loss attaches a mask of its own to its values, which differs from the predictions'."""
    loss = functools.partial(keras.losses.SparseCategoricalCrossentropy, ignore_class=3)
    found = _of_words(loss())
    if not LEGACY:  # tf_keras does not divide by weights
        again = _of_words(loss(reduction="mean_with_sample_weight"), by_weight=True)
        found |= {f"{name} weighted": value for name, value in again.items()}
    return found


def _of_words(loss: Any, by_weight: bool = False, metrics: Any = None) -> dict[str, Any]:
    words = np.random.default_rng(3)
    ids = words.integers(1, 20, size=(37, 9))
    ids[np.arange(9)[None] >= words.integers(1, 10, size=37)[:, None]] = 0
    weights = {"sample_weight": words.random((37, 9))} if by_weight else {}
    model = keras.Sequential(
        [
            keras.Input((9,)),
            layers.Embedding(20, 6, mask_zero=not by_weight),
            layers.Dense(8, "tanh"),
            layers.Dense(20, "softmax"),
        ]
    )
    model.compile(keras.optimizers.SGD(0.5), loss, metrics=metrics, run_eagerly=EAGER)
    return fit(model, 37, np.roll(ids, 1, 1), x=ids, batch_size=8, **weights)


class AddsLoss(layers.Layer):
    """Adds a mean over samples, or a sum."""

    def __init__(self, reduce: Callable[[Any], Any]) -> None:
        super().__init__()
        self.reduce = reduce

    def call(self, x: Any) -> Any:
        self.add_loss(0.01 * self.reduce(tf.square(x)))
        return x


def added() -> dict[str, Any]:
    """Layers add to a loss of the whole batch."""
    hidden = layers.Dense(6, "tanh", kernel_regularizer="l2", activity_regularizer="l2")
    sums = AddsLoss(tf.reduce_sum)  # eager code cannot analyze it: every rank gets whole batches
    stack = [keras.Input((8,)), hidden, AddsLoss(tf.reduce_mean), sums, layers.Dense(1)]
    return fit(compiled(keras.Sequential(stack), rmse))


class ByShape(layers.Layer):
    """Adds means computed from sums: divided by the shape, and by the number of elements."""

    def call(self, x: Any) -> Any:
        rows = x.shape[0] if x.shape[0] is not None else tf.cast(tf.shape(x)[0], x.dtype)
        self.add_loss(0.01 * tf.reduce_sum(x**2) / rows)
        self.add_loss(0.01 * tf.reduce_sum(tf.abs(x)) / tf.cast(tf.size(x), x.dtype))
        return x


def of_static_size() -> dict[str, Any]:
    """Batches of a static size that the ranks divide: the number of samples is a constant."""
    hidden = layers.Dense(6, "tanh", activity_regularizer="l2")
    stack = [keras.Input((8,)), hidden, ByShape(), layers.Dense(1)]
    return fit(compiled(keras.Sequential(stack), "mse"), 48)


class Steps(keras.Model):
    """A model with a custom train_step."""

    def __init__(self, outputs: int = 1) -> None:
        super().__init__()
        self.net = net(outputs)
        summaries()  # a step must not create it

    def ready(self) -> Any:
        self(X[:1])
        self.compile(keras.optimizers.SGD(0.1), **MODE)
        return self

    def call(self, x: Any, training: bool = False) -> Any:
        return self.net(x, training=training)

    def update(self, tape: Any, loss: Any) -> Any:
        weights = self.net.trainable_variables
        gradients = tape.gradient(loss, weights)
        self.optimizer.apply_gradients(zip(gradients, weights))
        return gradients


LABELS = np.where(drawn.random(Y.shape) < 0.4, -100, YES)
LABELS[1:16:2] = -100  # one of two ranks has no valid label in the first batch


class Valid(Steps):
    """A mean over valid elements, as in language models, and a regularizer."""

    def __init__(self, least: bool) -> None:
        super().__init__()
        self.least = least

    def loss_of(self, y: Any, guess: Any) -> Any:
        mask = tf.cast(y != -100, tf.float32)
        error = tf.reduce_sum(tf.square(y - guess) * mask)
        number = tf.reduce_sum(mask)
        if self.least:  # counted in integers
            number = tf.maximum(tf.reduce_sum(tf.cast(y != -100, tf.int32)), 3)
        found = error / tf.cast(number, tf.float32)
        return 0.5 * found + 0.01 * tf.add_n([tf.nn.l2_loss(w) for w in self.trainable_variables])

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.loss_of(y, self(x, training=True))
        self.update(tape, loss)
        return {"loss" if LEGACY else "valid": loss}  # Keras 3's "loss" is its own metric


def valid() -> dict[str, Any]:
    found = fit(Valid(False).ready(), y=LABELS)
    return found | {
        f"{name} least": one for name, one in fit(Valid(True).ready(), y=LABELS).items()
    }


class Shares(Steps):
    """A sum over samples with weights that add up to 1: a quotient of sums, not a sum."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        weights = tf.abs(x[:, 0])
        squares = keras.losses.MeanSquaredError(reduction="sum")
        with tf.GradientTape() as tape:
            loss = squares(
                y, self(x, training=True), sample_weight=weights / tf.reduce_sum(weights)
            )
        self.update(tape, loss)
        return {"shares": loss, "rate": self.optimizer.learning_rate, "half": 0.5}


def shares() -> dict[str, Any]:
    return fit(Shares().ready())


class Uncertain(Steps):
    """A quotient of sums, weighted by a trained uncertainty."""

    def __init__(self) -> None:
        super().__init__()
        self.s = self.add_weight(name="s", shape=(), initializer="zeros")

    def train_step(self, data: Any) -> Any:
        x, y = data
        mask = tf.cast(x[:, :1] > -0.5, tf.float32)
        weights = self.trainable_variables
        s = next(one for one in weights if not one.shape.rank)
        with tf.GradientTape() as tape:
            squares = tf.square(y - self(x, training=True))
            error = tf.reduce_sum(squares * mask) / tf.reduce_sum(mask)
            loss = tf.exp(-s) * error + s
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return {"error": error}


def uncertain() -> dict[str, Any]:
    return fit(Uncertain().ready(), 32)


class OverRows(Steps):
    """A mean and a sum over samples, divided by a constant: the static rows of one of 2 ranks."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            guess = self(x, training=True)
            mean = tf.reduce_mean(tf.square(y - guess))
            loss = mean + tf.reduce_sum(tf.abs(guess)) / 8.0
        self.update(tape, loss)
        return {"mean": mean}


def over_rows() -> dict[str, Any]:
    return fit(OverRows().ready(), 48)


class Scaled(keras.losses.Loss):
    """A class whose __call__ takes no weights, but an argument of its own."""

    def __call__(self, y: Any, guess: Any, *, scale: float, root: bool = False) -> Any:
        mean = tf.reduce_mean(scale * tf.square(y - guess))
        return tf.sqrt(mean) if root else mean


class CallsLosses(Steps):
    """A mean, a loss of the whole batch, and a sum with a keyword, outside of Keras's loss."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        squares = keras.losses.MeanSquaredError(reduction="sum")
        with tf.GradientTape() as tape:
            guess = self(x, training=True)
            loss = Scaled()(y, guess, scale=0.5) + Scaled()(y, guess=guess, scale=2.0, root=True)
            loss += 0.01 * squares(y, y_pred=guess, sample_weight=tf.abs(x[:, 0]))
        self.update(tape, loss)
        return {"called": loss}


def calls_losses() -> dict[str, Any]:
    return fit(CallsLosses().ready())


class Skips(Steps):
    """Skips updates whose gradients are large."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        weights = self.net.trainable_variables
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self(x, training=True)))
        grads = tape.gradient(loss, weights)

        def move() -> Any:
            self.optimizer.apply_gradients(zip(grads, weights))
            return True

        tf.cond(tf.linalg.global_norm(grads) < 2.3, move, lambda: False)
        return {"skips": loss}


def skips_by_norm() -> dict[str, Any]:
    return {} if EAGER else fit(Skips().ready())


class Contrastive(Steps):
    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            all_of_it = tf.mpi.gather_batch(self(x, training=True))
            labels = tf.mpi.gather_batch(y) > 0
            near = tf.math.l2_normalize(all_of_it, 1)
            near = tf.nn.log_softmax(tf.matmul(near, near, transpose_b=True) / 0.2)
            same = tf.cast(tf.equal(labels, tf.transpose(labels)), tf.float32)
            loss = -tf.reduce_mean(tf.reduce_sum(same * near, 1) / tf.reduce_sum(same, 1))
        self.update(tape, loss)
        return {"contrast": loss}


def contrastive() -> dict[str, Any]:
    return fit(Contrastive(4).ready())


class Anchors(Steps):
    """Compares each rank's own samples with the whole batch."""

    def train_step(self, data: Any) -> Any:
        x, _ = data
        with tf.GradientTape() as tape:
            mine = self(x, training=True)
            others = tf.mpi.gather_batch(mine)
            loss = tf.reduce_mean(tf.matmul(mine, others, transpose_b=True) ** 2)
        self.update(tape, loss)
        return {"anchors": loss}


def anchors() -> dict[str, Any]:
    return fit(Anchors(4).ready())


FOLDER = tempfile.TemporaryDirectory()


@functools.cache
def summaries() -> Any:
    return tf.summary.create_file_writer(FOLDER.name)


class Own(Steps):
    """A sum over samples, plain values and a norm beside metrics, and a metric in a dict."""

    def __init__(self, loss: Callable[[Any], Any]) -> None:
        super().__init__()
        self.loss_of = loss
        self.mean, self.sum = keras.metrics.Mean(name="mean"), keras.metrics.Sum(name="sum")
        self.auc = keras.metrics.AUC(name="auc", num_thresholds=20)

    @property
    def metrics(self) -> list[Any]:
        return [self.mean, self.sum, self.auc]

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            guess = self(x, training=True)
            loss = self.loss_of(tf.square(y - guess))
        gradients = self.update(tape, loss)
        self.mean.update_state(loss)
        self.sum.update_state(tf.reduce_mean(tf.abs(guess)))
        self.auc.update_state(y > 0, tf.sigmoid(guess))
        if not EAGER and not JIT:
            with summaries().as_default():
                tf.summary.scalar("bias", tf.reduce_sum(self.trainable_variables[-1]), step=0)
                tf.summary.scalar("mean of part", tf.reduce_mean(guess), step=0)
        return {
            "mean": self.mean.result(),
            "inner": {"auc": self.auc.result(), "sum": self.sum.result()},
            "error": tf.reduce_mean(tf.abs(y - guess)),
            "norm": tf.linalg.global_norm(gradients),
        }


def average_loss() -> dict[str, Any]:
    """As in a script for tf.distribute: a sum divided by the batch size that the script knows."""

    def loss(errors: Any) -> Any:
        return tf.nn.compute_average_loss(tf.reduce_sum(errors, 1), global_batch_size=16)

    return _flat(Own(loss).ready())


def own_mean() -> dict[str, Any]:
    return _flat(Own(tf.reduce_mean).ready())


def _small_sum(errors: Any) -> Any:
    return 0.05 * tf.reduce_sum(errors)


def own_sum() -> dict[str, Any]:
    found = _flat(Own(_small_sum).ready())
    model = Own(_small_sum)

    def regularized(errors: Any) -> Any:
        weights = model.net.trainable_variables
        return _small_sum(errors) + 0.1 * tf.add_n([tf.nn.l2_loss(w) for w in weights])

    model.loss_of = regularized
    again = _flat(model.ready())
    return found | {f"{name} regularized": value for name, value in again.items()}


def _flat(model: Any) -> dict[str, Any]:
    """tf_keras leaves nested dicts in its history, with dicts by epoch as values."""
    samples = 64 if JIT else 37
    found = model.fit(X[:samples], Y[:samples], batch_size=16, epochs=2, shuffle=False, verbose=0)
    values: dict[str, list[float]] = {}
    for name, epochs in found.history.items():
        for epoch in epochs:
            parts = epoch if isinstance(epoch, dict) else {name: epoch}
            for part, value in parts.items():
                values.setdefault(part, []).append(float(value))
    weights = [np.asarray(weight).ravel() for weight in model.net.get_weights()]
    values["weights"] = np.concatenate(weights).tolist()
    return {name: encode(np.asarray(value, np.float32)) for name, value in values.items()}


class Teacher(Steps):
    """A teacher that follows the weights, and a counter; neither depends on samples."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = net()
        self.teacher.set_weights(self.net.get_weights())
        self.teacher.trainable = False
        self.count = self.add_weight(
            name="count", shape=(), dtype="int32", initializer="zeros", trainable=False
        )

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            guess = self(x, training=True)
            loss = tf.reduce_mean(tf.square(guess - y) + 0.1 * tf.square(guess - self.teacher(x)))
        self.update(tape, loss)
        for theirs, ours in zip(self.teacher.weights, self.net.weights):
            theirs.assign(0.5 * theirs + 0.5 * ours)
        self.count.assign_add(1)
        return {"error": loss, "steps": tf.cast(self.count, tf.float32)}


def teacher() -> dict[str, Any]:
    return fit(Teacher().ready())


def synchronized() -> dict[str, Any]:
    stack = [keras.Input((8,)), layers.Dense(6), layers.BatchNormalization(synchronized=True)]
    model = compiled(keras.Sequential([*stack, layers.Dense(1)]), "mse")
    return {} if JIT else fit(model, validation_data=(X[:7], Y[:7]))


def on_batch() -> dict[str, Any]:
    """A script passes the whole batch to train_on_batch."""
    model = compiled(net(), rmse, metrics=[whole_batch_metrics.Largest(keras)()])
    values = [model.train_on_batch(X[:16], Y[:16]) for _ in range(3)]
    return {"values": encode(np.asarray(values, np.float32))}


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    case.__name__: case
    for case in (
        *(
            root_of_mean,
            keras_dice,
            own_dice,
            sum_of_samples,
            weighted,
            masked,
            ignored,
            added,
            of_static_size,
        ),
        *(
            valid,
            shares,
            over_rows,
            uncertain,
            calls_losses,
            skips_by_norm,
            contrastive,
            anchors,
            average_loss,
            own_mean,
            own_sum,
            teacher,
            synchronized,
            on_batch,
        ),
    )
}


def main() -> None:
    single_threaded_ops()
    said = whole_batch_said.cases(keras, Steps, fit, compiled, net, rmse, (X, Y))
    said |= whole_batch_norms.cases(keras, Steps, fit, compiled, MODE, (X, Y))
    cases = CASES | whole_batch_metrics.cases(keras, fit, compiled, net, (X, Y, YES)) | said
    chosen = [name for name in sys.argv[1:] if name in cases]
    found = {}
    for name in chosen or [name for name in cases if name not in said]:
        keras.utils.set_random_seed(1)
        found[name] = cases[name]()
    result(found)


if __name__ == "__main__":
    main()
