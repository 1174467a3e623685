"""Which batches of a PyDataset or Sequence the ranks make, and what they train on.

Arguments: keras or tf_keras; quick or all.

A row is [number of the sample, its random number]; batch b starts with number 100 * b.
"""

import itertools
import multiprocessing
import sys
import types
from typing import Any

import numpy as np
import tensorflow as tf
from common import encode, result

if sys.argv[1] == "tf_keras":
    import tf_keras as keras

    Sequence = keras.utils.Sequence
else:
    import keras

    Sequence = keras.utils.PyDataset

LENGTH, ROWS, LAST = 7, 5, 2  # number of batches, samples per batch, samples of the last one
RANK = tf.mpi.rank() if hasattr(tf, "mpi") else 0
calls = multiprocessing.Value("i", 0)
models: list[keras.Model] = []
seen = 0


class Batches(Sequence):  # type: ignore[valid-type,misc]
    """workers: number of threads, or of processes if negative. draw: a generator."""

    def __init__(self, workers=1, draw=None, rank=0, fails=None, length=LENGTH):
        self.given = {"workers": abs(workers), "use_multiprocessing": workers < 0}
        super().__init__(**self.given if sys.argv[1] == "keras" else {})
        self.order, self.length, self.draw, self.fails = np.arange(LENGTH), length, draw, fails
        self.epochs, self.rank = 0, (np.str_(rank),)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        with calls.get_lock():
            calls.value += 1
        if index == self.fails:
            raise ValueError(f"batch {index} is bad")
        batch = int(self.order[index % LENGTH])
        numbers = 100 * batch + np.arange(LAST if batch == LENGTH - 1 else ROWS)
        drawn = self.draw.normal(size=len(numbers)) if self.draw else np.zeros(len(numbers))
        x = np.stack([numbers, drawn], 1).astype("f")
        return x, x

    def on_epoch_end(self):
        self.epochs += 1


class Shuffled(Batches):
    def on_epoch_end(self):
        super().on_epoch_end()
        np.random.RandomState(self.epochs + int(self.rank[0])).shuffle(self.order)


class ShuffledByState(Batches):
    def on_epoch_end(self):
        super().on_epoch_end()
        np.random.shuffle(self.order)


class Counting(Batches):
    def __getitem__(self, index):
        self.seen = getattr(self, "seen", 0) + 1
        x, _ = super().__getitem__(index)
        x[:, 1] = self.seen
        return x, x


class Hidden(Batches):
    """Counts outside its own numbers: "an iterator", "an object", "a global variable"."""

    def __init__(self, where):
        super().__init__()
        self.where, self.held = where, types.SimpleNamespace(seen=0)
        self.numbers: Any = itertools.count() if where == "an iterator" else None

    def __getitem__(self, index):
        global seen
        x, _ = super().__getitem__(index)
        if self.where == "an iterator":
            x[:, 1] = next(self.numbers)
        elif self.where == "an object":
            self.held.seen += 1
            x[:, 1] = self.held.seen
        else:
            seen += 1
            x[:, 1] = seen
        return x, x


class Endless(Batches):
    @property
    def num_batches(self):
        return None


class Recorder(keras.Model):
    """Trains nothing and records its input."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def call(self, x):
        return x

    def train_step(self, data):
        return self.note(data)

    def test_step(self, data):
        return self.note(data)

    def note(self, data):
        from tensorflow.mpi._src.average import scope

        if tf.executing_eagerly():  # a step is first inspected in a graph
            weight = scope.current_weight()
            counts = weight is None or float(weight) > 0
            self.seen.append(data[0].numpy().tolist() if counts else [])
        return {"loss": tf.constant(0.0)}


class StopAt(keras.callbacks.Callback):
    def __init__(self, batch):
        super().__init__()
        self.batch = batch

    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = batch == self.batch


def fit(data, **arguments):
    calls.value = 0
    keras.utils.set_random_seed(3)
    model = Recorder()
    models.append(model)
    model.compile("sgd", "mse", run_eagerly=True)
    if sys.argv[1] == "tf_keras":
        arguments.update(data.given)
    model.fit(data, verbose=0, **arguments)
    # tf_keras's own workers also end epochs, at another time.
    own = sys.argv[1] == "tf_keras" and data.given != {"workers": 1, "use_multiprocessing": False}
    return {"seen": model.seen, "calls": calls.value, "epochs": 0 if own else data.epochs}


def stopped():
    data = Batches()
    first = fit(data, callbacks=[StopAt(2)], epochs=2)
    return {**first, "seen": first["seen"] + fit(data)["seen"]}


def failed():
    """All ranks get the error, after the batches before it, and can continue."""
    seen, errors = [], []
    for place in (3, LENGTH - 1):
        try:
            fit(Batches(fails=place), shuffle=False)
        except tf.errors.InvalidArgumentError as error:
            errors.append(str(error))
        seen += models[-1].seen
    last = fit(Batches(), shuffle=False)
    return {**last, "seen": seen + last["seen"], "errors": errors}


def steps():
    """Weights trained by fit, and the results of evaluate and predict."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), keras.layers.Dense(2)])
    model.compile(keras.optimizers.SGD(1e-7), "mse")
    data = Batches()
    history = model.fit(data, epochs=2, verbose=0, validation_data=Batches(length=3)).history
    calls.value = 0
    return {
        "history": history["loss"] + history["val_loss"],
        "evaluated": model.evaluate(data, verbose=0),
        "predicted": encode(model.predict(data, verbose=0)),
        "calls": calls.value,
    }


HIDDEN = "an iterator", "an object", "a global variable"
QUICK = {"threads", "open draws", "other orders", "failed", "steps", *HIDDEN}
cases = {
    "shuffled": lambda: fit(Batches(), epochs=2, shuffle=True),
    "own order": lambda: fit(Shuffled(), epochs=3, shuffle=False),
    "order by NumPy's state": lambda: fit(ShuffledByState(), epochs=3),
    "threads": lambda: fit(ShuffledByState(workers=3), epochs=2, shuffle=True),
    "processes": lambda: fit(Batches(workers=-2), epochs=2, shuffle=True),
    "seeded draws": lambda: fit(Batches(draw=np.random.RandomState(5)), epochs=2),
    "open draws": lambda: fit(Batches(draw=np.random.default_rng()), epochs=2),
    "draws in threads": lambda: fit(ShuffledByState(2, draw=np.random), epochs=3),
    "a state": lambda: fit(Counting(), epochs=2),
    **{where: lambda where=where: fit(Hidden(where), epochs=2) for where in HIDDEN},  # type: ignore
    "other orders": lambda: fit(Shuffled(rank=RANK), epochs=3, shuffle=False),
    "one batch": lambda: fit(Batches(length=1)),
    "parts of an epoch": lambda: fit(Batches(), steps_per_epoch=3, epochs=4, shuffle=False),
    "stopped": stopped,
    "failed": failed,
    "steps": steps,
}
if sys.argv[1] == "tf_keras":
    cases["threads"] = lambda: fit(Batches(workers=3), epochs=2, shuffle=True)
    del cases["draws in threads"]
else:
    cases["endless"] = lambda: fit(Endless(), steps_per_epoch=5, epochs=2)
result({name: case() for name, case in cases.items() if sys.argv[2] == "all" or name in QUICK})
