"""The metrics of whole_batch.py: values by batch and epoch cover all ranks' samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from common import encode


def f1(y: Any, guess: Any) -> Any:
    """A function of the batch that is not a mean over its samples."""
    guess = tf.round(guess)
    return 2 * tf.reduce_sum(y * guess) / (tf.reduce_sum(y) + tf.reduce_sum(guess) + 1e-7)


def Largest(keras: Any) -> Any:
    class Largest(keras.metrics.Metric):
        """Its state is a maximum."""

        def __init__(self, name: str = "largest") -> None:
            super().__init__(name=name)
            self.most = self.add_weight(name="most", shape=(), initializer="zeros")

        def update_state(self, y: Any, guess: Any, sample_weight: Any = None) -> None:
            self.most.assign(tf.maximum(self.most, tf.reduce_max(tf.abs(y - guess))))

        def result(self) -> Any:
            return self.most + 0.0

        def reset_state(self) -> None:
            self.most.assign(0.0)

    return Largest


def _classes(keras: Any) -> list[Any]:
    class OfMetrics(keras.metrics.Metric):
        """Combines Keras's own metrics."""

        def __init__(self) -> None:
            super().__init__(name="of_metrics")
            self.precision, self.recall = keras.metrics.Precision(), keras.metrics.Recall()

        def update_state(self, y: Any, guess: Any, sample_weight: Any = None) -> None:
            self.precision.update_state(y, guess)
            self.recall.update_state(y, guess)

        def result(self) -> Any:
            both = self.precision.result() + self.recall.result()
            return 2 * self.precision.result() * self.recall.result() / (both + 1e-7)

        def reset_state(self) -> None:
            self.precision.reset_state()
            self.recall.reset_state()

    class Batches(keras.metrics.Metric):
        """Counts batches, not samples."""

        def __init__(self) -> None:
            super().__init__(name="batches")
            self.number = self.add_weight(name="number", shape=(), initializer="zeros")

        def update_state(self, y: Any, guess: Any, sample_weight: Any = None) -> None:
            self.number.assign_add(1.0)

        def result(self) -> Any:
            return self.number + 0.0

        def reset_state(self) -> None:
            self.number.assign(0.0)

    class Running(keras.metrics.Metric):
        """Each update depends on the state before it."""

        def __init__(self) -> None:
            super().__init__(name="running")
            self.mean = self.add_weight(name="mean", shape=(), initializer="zeros")

        def update_state(self, y: Any, guess: Any, sample_weight: Any = None) -> None:
            self.mean.assign_add(0.1 * (tf.reduce_mean(tf.abs(y - guess)) - self.mean))

        def result(self) -> Any:
            return self.mean + 0.0

        def reset_state(self) -> None:
            self.mean.assign(0.0)

    class InVariables(keras.metrics.Metric):
        """Keeps its state in variables that Keras 3 does not track."""

        def __init__(self) -> None:
            super().__init__(name="in_variables")
            self.total, self.number = tf.Variable(0.0), tf.Variable(0.0)

        def update_state(self, y: Any, guess: Any, sample_weight: Any = None) -> None:
            self.total.assign_add(tf.reduce_sum(tf.abs(y - guess)))
            self.number.assign_add(tf.cast(tf.size(y), tf.float32))

        def result(self) -> Any:
            return self.total / self.number

        def reset_state(self) -> None:
            self.total.assign(0.0)
            self.number.assign(0.0)

    class MeanOfLargest(keras.metrics.Mean):
        def update_state(self, y: Any, guess: Any, sample_weight: Any = None) -> Any:
            return super().update_state(tf.reduce_max(tf.abs(y - guess)))

    class GoesOn(keras.metrics.MeanAbsoluteError):
        """A mean over everything that it has seen since it was created."""

        def reset_state(self) -> None:
            pass

    means = [MeanOfLargest(name="mean_of_largest"), GoesOn(name="goes_on")]
    return [Largest(keras)(), OfMetrics(), Batches(), Running(), InVariables(), *means]


def cases(
    keras: Any,
    fit: Callable[..., dict[str, Any]],
    compiled: Callable[..., Any],
    net: Callable[..., Any],
    data: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> dict[str, Callable[[], dict[str, Any]]]:
    """The cases by name; the arguments are those of whole_batch.py."""
    x, y, yes = data

    def metrics() -> dict[str, Any]:
        wanted = [f1, "accuracy", *_classes(keras), keras.metrics.AUC(name="auc")]
        model = compiled(net(1, "sigmoid"), "binary_crossentropy", metrics=wanted)
        return fit(model, y=yes, validation_data=(x[:32], yes[:32]))

    def outputs() -> dict[str, Any]:
        """Losses of single outputs; the batch size is not part of the shapes."""
        given = keras.Input((8,))
        hidden = keras.layers.Dense(6, "tanh")(given)
        heads = {
            "a": keras.layers.Dense(1, "sigmoid", name="a")(hidden),
            "b": keras.layers.Dense(1, name="b")(hidden),
        }
        losses = {"a": "binary_crossentropy", "b": "huber"}
        weights = {"a": 2.0, "b": 0.5}
        model = compiled(
            keras.Model(given, heads), losses, loss_weights=weights, metrics={"a": ["accuracy"]}
        )
        targets = {"a": yes, "b": y}
        dataset = tf.data.Dataset.from_tensor_slices((x, targets)).batch(9)
        history = model.fit(dataset, epochs=2, verbose=0, validation_data=dataset.take(3)).history
        return {name: encode(np.asarray(value, np.float32)) for name, value in history.items()}

    def batch_logs() -> dict[str, Any]:
        """Callbacks that read the logs of batches, and one that evaluates during an epoch."""
        seen: list[float] = []

        class Reads(keras.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                seen.extend(float(logs[name]) for name in sorted(logs))
                if batch == 1:
                    seen.append(self.model.evaluate(x[:7], y[:7], verbose=0)[0])

            def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
                seen.extend(float(logs[name]) for name in sorted(logs))

        class InKeras(Reads):
            """As in Keras's own tests: in its package, but not one of its callbacks."""

            __module__ = f"{keras.__name__}.src.trainers.trainer_test"

        found: dict[str, Any] = {}
        for kind in (Reads, InKeras):
            model = compiled(net(), "mse", metrics=["mae"])
            found |= fit(model, callbacks=[kind()], validation_data=(x[:7], y[:7]))
        return found | {"seen": encode(np.asarray(seen, np.float32))}

    return {case.__name__: case for case in (metrics, outputs, batch_logs)}
