"""Steps that need the whole batch and do not mention ranks: rank 0 reports them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from common import encode

WIDTHS: list[int] = []


def cases(
    keras: Any, Steps: Any, fit: Any, compiled: Any, net: Any, rmse: Any, data: Any
) -> dict[str, Callable[[], dict[str, Any]]]:
    """The cases by name; the arguments are those of whole_batch.py."""
    layers = keras.layers
    legacy = not hasattr(keras, "ops")  # tf_keras

    class ComputesLoss(Steps):
        def compute_loss(
            self, x: Any = None, y: Any = None, y_pred: Any = None, *_: Any, **__: Any
        ) -> Any:
            return rmse(y, y_pred)

    def computes_loss() -> dict[str, Any]:
        return fit(ComputesLoss().ready())

    class Pairs(Steps):
        """A contrastive loss that does not mention ranks, with a queue of samples."""

        def __init__(self) -> None:
            super().__init__(4)
            self.norm = layers.BatchNormalization()
            self.right = keras.metrics.SparseCategoricalAccuracy(name="right")
            self.queue = self.add_weight(
                name="queue", shape=(4,), initializer="zeros", trainable=False
            )

        @property
        def metrics(self) -> list[Any]:
            return [self.right]

        def call(self, x: Any, training: bool = False) -> Any:
            return self.norm(self.net(x, training=training), training=training)

        def loss_of(self, x: Any) -> Any:
            one = tf.math.l2_normalize(self(x, training=True), 1)
            other = tf.math.l2_normalize(self(x + 0.1, training=True), 1)
            near = tf.matmul(one, other, transpose_b=True) / 0.2
            labels = tf.range(tf.shape(x)[0])
            self.right.update_state(labels, near)
            self.queue.assign(tf.reduce_max(one, 0))
            losses = keras.losses.sparse_categorical_crossentropy(labels, near, from_logits=True)
            return tf.reduce_mean(losses)

        def train_step(self, data: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = self.loss_of(data[0])
            self.update(tape, loss)
            return {"right": self.right.result(), "pairs": loss}

        def test_step(self, data: Any) -> Any:
            return {"pairs": self.loss_of(data[0])}

    def pairs() -> dict[str, Any]:
        return fit(Pairs().ready(), validation_data=tuple(one[:7] for one in data))

    class Drops(Steps):
        """A root of a mean, in a network with dropout."""

        def __init__(self) -> None:
            super().__init__()
            self.net = keras.Sequential([*net().layers[:-1], layers.Dropout(0.4), layers.Dense(1)])

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = rmse(y, self(x, training=True))
            self.update(tape, loss)
            return {"root": loss}

    class Queue(Steps):
        """Embeddings of earlier batches are the negatives, as in MoCo."""

        def __init__(self) -> None:
            super().__init__(4)
            self.kept = self.add_weight(
                name="kept", shape=(20, 4), initializer="glorot_uniform", trainable=False
            )

        def train_step(self, data: Any) -> Any:
            with tf.GradientTape() as tape:
                own = tf.math.l2_normalize(self(data[0], training=True), 1)
                near = tf.reduce_logsumexp(tf.matmul(own, self.kept, transpose_b=True), 1)
                loss = tf.reduce_mean(near)
            self.update(tape, loss)
            self.kept.assign(tf.concat([own, self.kept], 0)[:20])
            return {"queue": loss}

    def queue() -> dict[str, Any]:
        return fit(Queue().ready())

    class Penalty(Steps):
        """The loss includes the norm of the whole batch's gradient."""

        def train_step(self, data: Any) -> Any:
            x, y = data
            weights = self.net.trainable_variables
            with tf.GradientTape() as tape:
                with tf.GradientTape() as inner:
                    loss = tf.reduce_mean(tf.square(y - self(x, training=True)))
                grads = inner.gradient(loss, weights)
                loss += 0.1 * tf.add_n([tf.nn.l2_loss(grad) for grad in grads])
            self.update(tape, loss)
            return {"penalty": loss}

    def penalty() -> dict[str, Any]:
        return fit(Penalty().ready())

    class Turns(Steps):
        """Counts its steps in Python and alternates; draws from a generator of its own."""

        turn = 0

        def __init__(self) -> None:
            super().__init__()
            self.drawn = np.random.RandomState(5)

        def train_step(self, data: Any) -> Any:
            x, y = data
            x *= 1 + self.drawn.rand()
            with tf.GradientTape() as tape:
                errors = tf.square(y - self(x, training=True))
                mean = tf.reduce_mean(errors)
                loss = mean if self.turn % 2 else tf.reduce_mean(tf.sqrt(errors + 0.1))
                if self.turn > 2:
                    loss = tf.sqrt(mean)
            self.turn += 1
            self.update(tape, loss)
            return {"turns": loss}

    def turns() -> dict[str, Any]:
        """In a graph it is traced once more than in one process; eager code alternates fully."""
        found = fit(Turns().ready())
        model = Turns().ready()
        model.compile(keras.optimizers.SGD(0.1), run_eagerly=True)
        return found | {f"{name} eagerly": value for name, value in fit(model).items()}

    class Averages(Steps):
        """Keeps a running mean in an attribute, in eager code."""

        def __init__(self) -> None:
            super().__init__()
            self.mean = tf.constant(0.0)

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(y - self(x, training=True)))
            self.mean = 0.9 * self.mean + 0.1 * loss
            self.update(tape, loss)
            return {"mean": self.mean}

    def averages() -> dict[str, Any]:
        model = Averages().ready()
        model.compile(keras.optimizers.SGD(0.1), run_eagerly=True)
        return fit(model)

    class Differs(Steps):
        """Compares with the loss of the step before, of which there is none at first."""

        def __init__(self) -> None:
            super().__init__()
            self._last = None

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(y - self(x, training=True)))
            self.update(tape, loss)
            change = loss if self._last is None else loss - self._last
            self._last = loss
            return {"change": change}

    def differs() -> dict[str, Any]:
        model = Differs().ready()
        model.compile(keras.optimizers.SGD(0.1), run_eagerly=True)
        return fit(model)

    class Keeps(Steps):
        """Keeps means of its batches in a Python list and reads them in later steps."""

        def __init__(self) -> None:
            super().__init__()
            self.means: list[Any] = []

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                self.means.append(tf.reduce_mean(x))
                loss = tf.reduce_mean(tf.square(y - tf.add_n(self.means) * self(x, training=True)))
            self.update(tape, loss)
            return {"means": loss}

    def keeps() -> dict[str, Any]:
        model = Keeps().ready()
        model.compile(keras.optimizers.SGD(0.1), run_eagerly=True)
        return {} if legacy else fit(model)

    class Warms(keras.losses.Loss):
        """Counts its calls in Python: in a graph, how often it is traced."""

        def __init__(self) -> None:
            super().__init__(name="warms")
            self.calls = 0

        def call(self, y: Any, guess: Any) -> Any:
            self.calls += 1
            return tf.reduce_mean(tf.square(y - guess), -1) * min(1.0, self.calls / 8)

    def counts_calls() -> dict[str, Any]:
        found = fit(compiled(net(), Warms()))
        model = net()
        model.compile(keras.optimizers.SGD(0.1), Warms(), run_eagerly=True)
        return found | {f"{name} eagerly": value for name, value in fit(model).items()}

    class Lists(keras.metrics.Metric):
        """Keeps its batches in Python lists, which nobody sums over ranks."""

        def __init__(self) -> None:
            super().__init__(name="lists")
            self.kept: list[Any] = []
            self._steps: dict[str, list[Any]] = {"guesses": []}

        def update_state(self, y: Any, guess: Any, sample_weight: Any = None) -> None:
            self.kept = [*self.kept, y]
            self._steps["guesses"].append(guess)

        def result(self) -> Any:
            guesses = tf.concat(self._steps["guesses"], 0)
            return tf.reduce_max(tf.abs(tf.concat(self.kept, 0) - guesses))

        def reset_state(self) -> None:
            self.kept, self._steps = [], {"guesses": []}

    def lists() -> dict[str, Any]:
        model = net()
        model.compile(keras.optimizers.SGD(0.1), "mse", metrics=[Lists()], run_eagerly=True)
        return {} if legacy else fit(model, validation_data=tuple(one[:7] for one in data))

    class Widths(Steps):
        """Sets an attribute in its first step, and a global list in every step."""

        width = None

        def train_step(self, data: Any) -> Any:
            x, y = data
            self.width = int(x.shape[-1]) if self.width is None else self.width
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(y - self(x, training=True))) / self.width
            self.update(tape, loss)
            WIDTHS.append(self.width)
            return {"widths": loss, "samples": tf.shape(x)[0]}

    def widths() -> dict[str, Any]:
        WIDTHS.clear()
        found = fit(Widths().ready(), 32)
        model = Widths().ready()
        model.width = 8  # only the list changes
        model.compile(keras.optimizers.SGD(0.1), run_eagerly=True)
        found |= {f"{name} eagerly": value for name, value in fit(model).items()}
        return found | {"steps": encode(np.asarray(WIDTHS, np.float32))}

    def eager_functions() -> dict[str, Any]:
        """A mean and a sum, which an eager step cannot tell apart."""
        tf.config.run_functions_eagerly(True)
        try:
            return fit(Sums().ready())
        finally:
            tf.config.run_functions_eagerly(False)

    class Sums(Steps):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                errors = tf.square(y - self(x, training=True))
                loss = tf.reduce_mean(errors) + 0.02 * tf.reduce_sum(errors)
            self.update(tape, loss)
            return {"sums": loss}

    class Views(Steps):
        """A loss object that pairs the halves of two concatenated views, as in SimCLR."""

        def train_step(self, data: Any) -> Any:
            x, _ = data
            with tf.GradientTape() as tape:
                both = self(tf.concat([x, x + 0.1], 0), training=True)
                loss = Halves(name="halves")(both, both)
            self.update(tape, loss)
            return {"views": loss}

    class Halves(keras.losses.Loss):
        def call(self, y: Any, guess: Any) -> Any:
            first, second = tf.split(guess, 2)
            return tf.sqrt(tf.reduce_mean(tf.square(first - 2 * second)))

    def views() -> dict[str, Any]:
        return fit(Views(4).ready())

    class Adaptive(Steps):
        """A metric's result, which covers only the samples of a rank, weights the loss."""

        def __init__(self) -> None:
            super().__init__()
            self.error = keras.metrics.Mean(name="error")

        @property
        def metrics(self) -> list[Any]:
            return [self.error]

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(y - self(x, training=True)))
                self.error.update_state(loss)
                loss = loss / (1 + self.error.result())
            self.update(tape, loss)
            return {"error": self.error.result()}

    def adaptive() -> dict[str, Any]:
        return fit(Adaptive().ready())

    class Skips(Steps):
        """Skips updates whose loss is large, which each part's own loss would decide."""

        def train_step(self, data: Any) -> Any:
            x, y = data
            weights = self.net.trainable_variables
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(y - self(x, training=True)))
            grads = tape.gradient(loss, weights)

            def move() -> Any:
                self.optimizer.apply_gradients(zip(grads, weights))
                return True

            tf.cond(loss < 1.2, move, lambda: False)
            return {"skips": loss}

    def skips() -> dict[str, Any]:
        return fit(Skips().ready())

    class Quotient(Steps):
        """A quotient of sums in another function, which the plan cannot split into terms."""

        def test_step(self, data: Any) -> Any:
            @tf.function
            def quotient(errors: Any, weights: Any) -> Any:
                return tf.reduce_sum(errors * weights) / tf.reduce_sum(weights)

            x, y = data
            return {"quotient": quotient(tf.abs(y - self(x)), tf.abs(y))}

    def quotient() -> dict[str, Any]:
        values = Quotient().ready().evaluate(*(one[:32] for one in data), batch_size=16, verbose=0)
        return {"quotient": encode(np.asarray(values, np.float32))}

    def dropped() -> dict[str, Any]:
        """Whole batches get one process's masks; tf_keras's masks do not follow the script's
        seed."""
        return {} if legacy else fit(Drops().ready())

    made = (
        computes_loss,
        pairs,
        queue,
        penalty,
        turns,
        averages,
        keeps,
        counts_calls,
        lists,
        widths,
        eager_functions,
        differs,
        views,
        adaptive,
        skips,
        quotient,
        dropped,
    )
    return {case.__name__: case for case in made}
