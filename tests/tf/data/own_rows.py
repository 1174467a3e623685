"""Data that differ by rank in predict and fit. Argument: keras, tf_keras.

Each rank's own random generator stands for data that depend on a clock.
"""

import os
import sys
import time

import numpy as np
import tensorflow as tf
from common import result

if sys.argv[1] == "tf_keras":
    import tf_keras as keras

    Sequence = keras.utils.Sequence
else:
    import keras

    Sequence = keras.utils.PyDataset

RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0))
own = np.random.default_rng(RANK)
X, Y = own.normal(size=(19, 4)).astype("f"), own.normal(size=(19, 2)).astype("f")
SAME = np.arange(19, dtype="f")[:, None] * np.ones(4, "f")
PERMUTATION = own.permutation(19)

keras.utils.set_random_seed(1)
inputs = keras.Input((4,))
model = keras.Model(inputs, keras.layers.Dense(2)(inputs))
model.compile("sgd", "mse")


class Batches(Sequence):  # type: ignore[valid-type,misc]
    def __init__(self, x):
        super().__init__()
        self.x, self.asked = x, set()

    def __len__(self):
        return 5

    def __getitem__(self, index):
        self.asked.add(index)
        return self.x[index * 4 : index * 4 + 4]


def is_of(rows, **arguments):
    """Whether predict(rows or what yields them) returns the predictions of this rank's rows."""
    predicted = model.predict(arguments.pop("data", rows), verbose=0, **arguments)
    kernel, bias = model.get_weights()
    rows = rows() if callable(rows) else rows
    return len(predicted) == len(rows) and np.allclose(predicted, rows @ kernel + bias, atol=1e-5)


def sliced(rows):
    return tf.data.Dataset.from_tensor_slices(rows).batch(4)


def captured():
    def sample(i):
        return tf.gather(tf.gather(SAME, PERMUTATION), i)

    return tf.data.Dataset.range(19).map(sample).batch(4)


def predictions():
    yielded = []

    def generator():
        drawn = np.random.default_rng()  # the same on all ranks
        for _ in range(5):
            yielded.append(drawn.normal(size=(3, 4)).astype("f"))
            yield (yielded[-1],)

    mine, alike = Batches(X), Batches(SAME)
    found = {
        "same": is_of(SAME),
        "arrays": is_of(X, batch_size=4),
        "of other sizes": is_of(X[: 10 + RANK], batch_size=4),
        "dataset": is_of(X, data=sliced(X)),
        "dataset of other sizes": is_of(X[: 10 + RANK], data=sliced(X[: 10 + RANK])),
        "captured": is_of(SAME[PERMUTATION], data=captured()),
        "generator": is_of(lambda: np.concatenate(yielded), data=generator()),
        "own sequence": is_of(X, data=mine),
        "same sequence": is_of(SAME, data=alike),
    }
    return {
        "right": {name: bool(value) for name, value in found.items()},
        "yielded": len(yielded),
        "asked": [len(mine.asked), len(alike.asked)],
    }


def noted():
    """Labels that a generator records, and the loss that they give."""
    labels = []

    def generator(seed):
        drawn = np.random.default_rng(seed)
        for _ in range(6):
            x = drawn.normal(size=(4, 4)).astype("f")
            labels.append(x[:, :2].tolist())
            yield x, x[:, :2]

    alike = model.fit(generator(3), verbose=0).history["loss"]
    noted = list(labels)
    other = model.fit(generator(RANK), verbose=0).history["loss"]
    return {"loss": alike, "labels": noted, "loss of rank 0's": other, "all": len(labels)}


def counted():
    """Samples that a map counts in a variable."""
    samples = tf.Variable(0)

    def count(x):
        samples.assign_add(1)
        return x, x[:2]

    model.fit(sliced(SAME).unbatch().map(count).batch(4), verbose=0)
    return int(samples)


def asked_for():
    """How often fit asked a generator that several calls share: it reads a batch ahead each
    time."""
    asked: list[int] = []

    def generator():
        while True:
            asked.append(len(asked))
            time.sleep(0.02)  # gives reading ahead the time to happen
            yield SAME[:4], SAME[:4, :2] + len(asked)

    counts, going_on = [], generator()
    for steps in (3, 2):
        time.sleep(0.2)
        model.fit(going_on, steps_per_epoch=steps, verbose=0, callbacks=[After()])
        counts.append(len(asked))
    dataset = tf.data.Dataset.from_generator(
        lambda: going_on,
        output_signature=(tf.TensorSpec([4, 4]), tf.TensorSpec([4, 2])),
    )
    model.fit(dataset, steps_per_epoch=3, verbose=0, callbacks=[After()])
    return [*counts, len(asked)]


class After(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.2)


result(
    {"predicted": predictions(), "noted": noted(), "counted": counted(), "asked for": asked_for()}
)
