"""State and decisions in fit and evaluate that ranks must share: prints what each saw and did.

Arguments: names of cases, default all. Cases that end in an error end the script.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from common import encode, result, single_threaded_ops

layers = keras.layers
RANK, SIZE = tf.mpi.rank(), tf.mpi.size()
SAMPLES, BATCH = 90, 20  # 3 ranks do not divide 20 evenly, and an epoch's last batch has 10


def data() -> tuple[np.ndarray, np.ndarray]:
    drawn = np.random.default_rng(3)
    x = drawn.normal(size=(SAMPLES, 6)).astype(np.float32)
    return x, (x @ drawn.normal(size=(6, 1)) > 0).astype(np.float32)


def classifier(**compile_arguments: Any) -> Any:
    model = keras.Sequential(
        [
            layers.Input((6,)),
            layers.Dense(8, activation="tanh"),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    arguments = {"optimizer": keras.optimizers.Adam(0.02), "loss": "binary_crossentropy"}
    model.compile(**{**arguments, **compile_arguments})
    return model


def metrics() -> dict[str, Any]:
    """Over all ranks' samples, in History and from evaluate; also those that are not means."""
    model = classifier(
        metrics=["accuracy", keras.metrics.AUC(name="auc"), keras.metrics.Recall(name="recall")],
        weighted_metrics=[keras.metrics.MeanSquaredError(name="mse")],
    )
    x, y = data()
    weight = np.linspace(0.1, 2, SAMPLES).astype(np.float32)
    untrained = model.evaluate(x, y, verbose=0)
    history = model.fit(
        x, y, sample_weight=weight, batch_size=BATCH, epochs=3, validation_split=0.3, verbose=0
    )
    trained = model.evaluate(x, y, verbose=0, return_dict=True)
    return {"numbers": {**history.history, **trained, "untrained": untrained}}


def retraced() -> dict[str, Any]:
    """Evaluations in which every rank has samples of each batch, then one where a rank has none."""
    model = classifier(metrics=["accuracy"])
    x, y = data()
    model.fit(
        x, y, batch_size=2 * SIZE, validation_data=(x, y), validation_batch_size=87, verbose=0
    )
    model.evaluate(x, y, batch_size=89, verbose=0)
    return {"counted": [float(v.numpy()) for v in model.metrics[0].variables][1]}


def callbacks() -> dict[str, Any]:
    """EarlyStopping and ReduceLROnPlateau decide with values that are equal on all ranks."""
    model = classifier(optimizer=keras.optimizers.SGD(3.0, momentum=0.95))
    x, y = data()
    noise = np.random.default_rng(4).random((SAMPLES, 1)) < 0.3
    history = model.fit(
        x,
        np.where(noise, 1 - y, y),
        batch_size=BATCH,
        epochs=40,
        validation_data=(x, y),
        verbose=0,
        callbacks=[
            keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1),
            keras.callbacks.EarlyStopping("val_loss", patience=3, restore_best_weights=True),
        ],
    )
    return {
        "epochs": len(history.epoch),
        "rates": history.history["learning_rate"],
        "weights": [encode(w) for w in model.get_weights()],
    }


class StopOn(keras.callbacks.Callback):
    """Stops on the last rank only, in the middle of an epoch or at its end."""

    def __init__(self, batch: int = -1, epoch: int = -1) -> None:
        super().__init__()
        self.batch, self.epoch, self.seen = batch, epoch, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seen += 1
        if RANK == SIZE - 1 and self.seen == self.batch:
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if RANK == SIZE - 1 and epoch == self.epoch:
            self.model.stop_training = True


def stop() -> dict[str, Any]:
    """If one rank decides to stop, all stop."""
    x, y = data()
    seen = []
    for callback in (StopOn(batch=7), StopOn(epoch=1)):
        model = classifier()
        history = model.fit(x, y, batch_size=BATCH, epochs=5, verbose=0, callbacks=[callback])
        seen.append([callback.seen, len(history.epoch), int(model.optimizer.iterations.numpy())])
    return {"batches, epochs, steps": seen}


class Signaled(keras.Sequential):
    """Its seventh step sends the last rank a signal."""

    def train_step(self, batch: Any) -> Any:
        found = super().train_step(batch)
        last = RANK == SIZE - 1 and tf.executing_eagerly()  # not while it is inspected
        if last and int(self.optimizer.iterations.numpy()) == 7:
            os.kill(os.getpid(), signal.SIGUSR1)
        return found


def stopped_by_signal() -> dict[str, Any]:
    """A handler that stops training on one rank, and no callback that looks at batches."""
    x, y = data()
    model = Signaled([layers.Input((6,)), layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)

    def stop(number: int, frame: Any) -> None:
        model.stop_training = True

    before = signal.signal(signal.SIGUSR1, stop)
    history = model.fit(x, y, batch_size=BATCH, epochs=5, verbose=0)
    signal.signal(signal.SIGUSR1, before)
    return {"epochs, steps": [len(history.epoch), int(model.optimizer.iterations.numpy())]}


class StopAtBegin(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if RANK == SIZE - 1 and epoch == 1:
            self.model.stop_training = True


def stopped_at_begin() -> dict[str, Any]:
    """A stop at the beginning of an epoch takes effect after its first batch."""
    x, y = data()
    model = classifier()
    callbacks = [StopAtBegin()]
    history = model.fit(x, y, batch_size=BATCH, epochs=5, verbose=0, callbacks=callbacks)
    return {"epochs, steps": [len(history.epoch), int(model.optimizer.iterations.numpy())]}


def nan() -> dict[str, Any]:
    """One rank has a NaN sample; TerminateOnNaN ends the epoch on all ranks."""
    model = classifier()
    x, y = data()
    x[50] = np.nan
    history = model.fit(
        x, y, batch_size=BATCH, epochs=3, shuffle=False, verbose=0,
        callbacks=[keras.callbacks.TerminateOnNaN()],
    )  # fmt: skip
    return {"epochs": len(history.epoch), "steps": int(model.optimizer.iterations.numpy())}


class OwnLogs(keras.Model):
    """Its train_step returns numbers that are not metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.out = layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.out(x)

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x) - y))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"own": loss}


def own_logs() -> dict[str, Any]:
    """The mean over ranks of the last batch, of which the ranks have equal parts."""
    model = OwnLogs()
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    x, y = data()
    history = model.fit(x[:84], y[:84], batch_size=12, epochs=3, verbose=0)
    return {"numbers": history.history}


def batch_norm() -> dict[str, Any]:
    """Moving averages of the whole batch's moments, or means of the ranks' own."""
    model = keras.Sequential([layers.Input((6,)), layers.BatchNormalization(), layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = data()
    model.fit(x, y, batch_size=18, epochs=2, shuffle=False, verbose=0)
    return {"moving": [encode(w) for w in model.layers[0].get_weights()[2:]]}


def batch_norm_trained() -> dict[str, Any]:
    """Convolutions and batch norm on batches that do not divide evenly."""
    model = keras.Sequential(
        [
            layers.Input((6, 1)),
            layers.Conv1D(4, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.Flatten(),
            layers.Dense(5),
            layers.BatchNormalization(momentum=0.8),
            layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.SGD(0.02, momentum=0.9), "mse")
    x, y = data()
    model.fit(x, y, batch_size=BATCH, epochs=3, verbose=0)
    return {"weights": [encode(w) for w in model.get_weights()]}


def on_batch() -> dict[str, Any]:
    """train_on_batch trains on its input, here the script's own part of each batch."""
    model = classifier(optimizer=keras.optimizers.SGD(0.3, momentum=0.9))
    x, y = data()
    for start in range(0, 72, 24):
        mine = slice(start + RANK, start + 24, SIZE)
        model.train_on_batch(x[mine], y[mine])
    return {"weights": [encode(w) for w in model.get_weights()]}


def dropout() -> dict[str, Any]:
    """Where the sequence of masks starts, and that it advances."""
    random.seed(11)  # from which Keras draws the layer's seed
    model = keras.Sequential([layers.Input((6,)), layers.Dropout(0.5), layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = data()
    model.fit(x, y, batch_size=18, epochs=1, verbose=0)
    return {"state": [int(n) for n in model.layers[0].seed_generator.state.numpy()]}


def graph() -> dict[str, Any]:
    """How often the step is traced, and what its graph contains."""
    traces = []

    class Traced(keras.Sequential):
        def train_step(self, batch: Any) -> Any:
            traces.append(1)
            return super().train_step(batch)

    model = Traced([layers.Input((6,)), layers.Dense(8, activation="tanh"), layers.Dense(1)])
    model.compile(keras.optimizers.Adam(), "mse")
    x, y = data()
    model.fit(x[:72], y[:72], batch_size=12, epochs=3, verbose=0)
    model.fit(x[:72], y[:72], batch_size=12, epochs=1, verbose=0)
    dataset = iter(tf.data.Dataset.from_tensor_slices((x[:72], y[:72])).batch(12 // SIZE))
    step = tf.function(model.train_step).get_concrete_function(next(dataset))
    types = sorted(op.type for op in step.graph.get_operations() if op.type != "Const")
    variables = len(model.trainable_variables)
    return {"traces": len(traces), "types": types, "variables": variables}


class Unreached(keras.optimizers.SGD):
    """Its own method updates the weights without a gradient."""

    def sneak(self, values: Any, variables: list[Any]) -> None:
        for variable in variables:
            variable.assign_sub(0.1 * tf.reduce_mean(values) * tf.ones_like(variable))


class Sneaky(OwnLogs):
    """Averages moments instead of gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = layers.BatchNormalization()

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        loss = tf.reduce_mean(tf.square(self(self.norm(x, training=True)) - y))
        self.optimizer.sneak(x, self.trainable_variables)
        return {"own": loss}


def unreached() -> dict[str, Any]:
    model = Sneaky()
    model.compile(Unreached())
    model.fit(*data(), batch_size=BATCH, verbose=0)
    return {}


class Tamper(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if RANK == 1:
            kernel = self.model.layers[0].kernel
            kernel.assign(kernel + 1)


def tampered() -> dict[str, Any]:
    """One rank changes a weight itself."""
    classifier().fit(*data(), batch_size=BATCH, verbose=0, callbacks=[Tamper()])
    return {}


class Poison(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # After the last step, so that no step spreads the NaN.
        if RANK == 0 and batch == self.params["steps"] - 1:
            kernel = self.model.layers[0].kernel
            kernel.assign(kernel.numpy() * np.where(np.arange(kernel.shape[1]) == 0, np.nan, 1))


def poisoned() -> dict[str, Any]:
    """Part of a weight on rank 0 is NaN; silently using rank 0's value would keep it."""
    classifier().fit(*data(), batch_size=BATCH, verbose=0, callbacks=[Poison()])
    return {}


def norm_in_a_loop() -> dict[str, Any]:
    """Batch norm in a custom loop whose batches the ranks divide; eager, then as a function."""
    model = keras.Sequential(
        [layers.Input((6,)), layers.BatchNormalization(name="norm"), layers.Dense(1)]
    )
    batches = tf.data.Dataset.from_tensor_slices(data()).batch(24)
    optimizer = keras.optimizers.SGD(0.1)

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:  # a penalty on slopes, through the moments
                inner.watch(x)
                guess = model(x, training=True)
            slopes = tf.reduce_sum(tf.square(inner.gradient(guess, x)), 1)
            loss = tf.reduce_mean(tf.square(guess - y)) + tf.reduce_mean(tf.square(slopes - 1))
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)

    for one_step in (step, tf.function(step)):
        for x, y in tf.mpi.shard(batches):
            one_step(x, y)
    return {"weights": [encode(w) for w in model.get_weights()]}


CASES = {
    "metrics": metrics,
    "retraced": retraced,
    "callbacks": callbacks,
    "stop": stop,
    "stop at begin": stopped_at_begin,
    "nan": nan,
    "own logs": own_logs,
    "batch norm": batch_norm,
    "on batch": on_batch,
    "dropout": dropout,
    "graph": graph,
    "norm in a loop": norm_in_a_loop,
    # Last, because after an eager fit the first gradient of an eager loop over a new model of the
    # same names is taken before the ranks have rank 0's weights.
    "stop by signal": stopped_by_signal,
}
ON_DEMAND = {
    "batch norm trained": batch_norm_trained,
    "unreached": unreached,
    "tampered": tampered,
    "poisoned": poisoned,
}


def main() -> None:
    single_threaded_ops()
    found = {}
    for name in sys.argv[1:] or CASES:
        keras.backend.clear_session()
        keras.utils.set_random_seed(11)
        random.seed(11 + RANK)  # the seeds of initializers: rank 0's weights must be used
        found[name] = {**CASES, **ON_DEMAND}[name]()
    result(found)


main()
