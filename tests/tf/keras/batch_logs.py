"""Callbacks that read a batch's logs late, rarely, on one rank only, or never.

Arguments: keras or tf_keras, then ways to read.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import numpy as np
import tensorflow as tf
from common import result

if "tf_keras" in sys.argv:
    import tf_keras as keras
else:
    import keras

RANK = tf.mpi.rank()
x = np.random.default_rng(3).normal(size=(42, 6)).astype(np.float32)
y = x[:, :1] * x[:, 1:2] + 1


def exchanges() -> int:
    """The number of exchanges between ranks; 0 in one process."""
    module = sys.modules.get("tensorflow.mpi._src.messaging.collectives")
    return 0 if module is None else module.last_started


def is_reported() -> bool:
    """Whether rank 0 has said that a metric covers only its part."""
    module = sys.modules.get("tensorflow.mpi._src.runtime.log")
    return module is not None and "a metric in an epoch" in module._logged_keys


class Looks(keras.callbacks.Callback):
    """Reads logs in one way, on one rank if `rank` is given, and records them."""

    def __init__(self, way: str, rank: int | None = None) -> None:
        super().__init__()
        self.way, self.rank = way, rank
        self.seen: list[Any] = []
        self.kept: list[Any] = []
        self.met: list[int] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.met.append(exchanges())
        if self.rank in (None, RANK):
            getattr(self, self.way)(batch, logs)
        if self.way == "shows" and batch == 3:
            self.seen += self.model.evaluate(x[:9], y[:9], verbose=0)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.way == "seldom" and self.rank in (None, RANK):
            self.seldom(batch, logs)

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.rank in (None, RANK):
            getattr(self, self.way)(batch, logs)

    def returned(self, batch: int, logs: Any) -> None:
        """Of a step that returns a loss, but updates no metric of that name."""
        self.seen.append(logs["loss"])

    returned_whole = returned

    def never(self, batch: int, logs: Any) -> None:
        assert "loss" in logs and len(logs) in (1, 2) and logs

    def seldom(self, batch: int, logs: Any) -> None:
        if batch == 2:
            self.seen += [logs["loss"], logs["mae"]]

    def spread(self, batch: int, logs: Any) -> None:
        self.seen += [dict(**logs)["loss"], {**logs}["mae"]]

    def itself(self, batch: int, logs: Any) -> None:
        """A metric without its logs: before the epoch ends it has only a part of the samples."""
        self.model.metrics[0].result()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.way == "itself":
            self.seen.append(float(self.model.metrics[0].result()))

    def whole(self, batch: int, logs: Any) -> None:
        self.seen += [*dict(logs).values(), *[value for _, value in sorted(logs.items())]]

    apart = spread

    def keeps(self, batch: int, logs: Any) -> None:
        self.kept.append(logs)

    def evaluates(self, batch: int, logs: Any) -> None:
        self.seen += self.model.evaluate(x[:9], y[:9], verbose=0)
        self.seen += [logs.get("loss"), logs.get("mae")]

    def shows(self, batch: int, logs: Any) -> None:
        """Like a script that prints on rank 0 and then evaluates."""
        self.seen.append(logs["loss"])

    def outputs(self, batch: int, logs: Any) -> None:
        """Of predict's batches, which a script may collect in place of the result."""
        if "outputs" in logs:
            self.seen += [len(logs["outputs"]), *np.ravel(logs["outputs"]).tolist()]

    def raises(self, batch: int, logs: Any) -> None:
        """Raises an error that the script catches; the next fit works as usual."""
        if batch == 1:
            raise KeyError("looked for")

    def on_train_end(self, logs: Any = None) -> None:
        self.seen += [value for kept in self.kept for value in kept.values()]


class Returning(keras.Sequential):
    """Its train_step returns its own loss: of a batch's samples, or of whole batches."""

    whole = False

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            errors = (self(x, training=True) - y) ** 2
            loss = tf.reduce_mean(errors)
            if self.whole:
                loss += 0.1 * tf.sort(errors[:, 0])[1]
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return {"loss": loss}


def train(*callbacks: Any) -> None:
    keras.utils.set_random_seed(4)
    own_step = callbacks[-1].way.startswith("returned")
    model = (Returning if own_step else keras.Sequential)(
        [keras.Input((6,)), keras.layers.Dense(1)]
    )
    model.whole = callbacks[-1].way == "returned_whole"
    model.compile(keras.optimizers.SGD(0.05), "mse", metrics=None if own_step else ["mae"])
    model.fit(
        x, y, batch_size=9, epochs=2, verbose=0, shuffle=False, validation_data=(x[:30], y[:30]),
        validation_batch_size=10, callbacks=list(callbacks),
    )  # fmt: skip
    if any(one.way == "outputs" for one in callbacks):
        predicted = model.predict(x[:20], batch_size=9, verbose=0, callbacks=callbacks[-1])
        callbacks[-1].seen += np.ravel(predicted).tolist() if callbacks[-1].seen else []


ways = sys.argv[2:]
found: dict[str, Any] = {}
for name in ways:
    way, _, alone = name.partition(", ")
    looks, other = Looks(way, 1 if alone else None), Looks("never")
    if name == ways[0]:
        with contextlib.suppress(KeyError):
            train(other, Looks("raises"))
    looks.async_safe = way == "apart"  # Keras 3 then runs it on a separate thread
    other.async_safe = looks.async_safe
    train(other, looks)
    found[name] = looks.seen
never = Looks("never")
train(never)
found["meetings"] = np.diff(never.met[:4]).tolist()  # between batches of one epoch
found["reported"] = [is_reported()]
itself = Looks("itself")
train(itself)
found["itself"] = itself.seen
found["reported"].append(is_reported())
result(found)
