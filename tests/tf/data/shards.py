"""The data that fit, evaluate and predict give each rank, and the results. Argument: keras,
tf_keras.

Samples are numbered: `seen` contains, by step, [numbers of this rank's samples, their weight,
[position of the first, samples on all ranks]].
"""

import sys

import numpy as np
import tensorflow as tf
from common import compiles, encode, result

if sys.argv[1] == "tf_keras":
    import tf_keras as keras
else:
    import keras

SAMPLES, BATCH = 23, 5
RANDOM = np.random.RandomState(0)
X = RANDOM.randn(SAMPLES, 3).astype("float32")
Y = RANDOM.randint(0, 3, SAMPLES)
WEIGHTS = RANDOM.rand(SAMPLES).astype("float32")
NUMBERS = np.arange(SAMPLES, dtype="float32")[:, None]


class Recorder(keras.Model):
    """Trains nothing and records its input."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def call(self, x):
        return x

    def train_step(self, data):
        from tensorflow.mpi._src.average import scope
        from tensorflow.mpi._src.global_batch import batch

        x = data[0] if isinstance(data, tuple) else data
        weight, part = scope.current_weight(), batch.current()
        if tf.executing_eagerly():  # a step is first inspected in a graph
            numbers = x.numpy().reshape(-1).astype(int).tolist()
            place = [int(part.first_row()), int(part.whole_rows())] if part else None
            self.seen.append([numbers, 1.0 if weight is None else float(weight), place])
        return {"loss": tf.constant(0.0)}


def seen(x, **arguments):
    model = Recorder()
    model.compile("sgd", "mse", run_eagerly=True)
    model.fit(x, verbose=0, **arguments)
    return model.seen


def batches(count=SAMPLES, size=BATCH):
    return [NUMBERS[i : i + size] for i in range(0, count, size)]


def generator(count=SAMPLES):
    for batch in batches(count):
        yield (batch, batch)


class Batches(keras.utils.Sequence):
    def __len__(self):
        return len(batches())

    def __getitem__(self, index):
        return batches()[index], batches()[index]


def datasets():
    whole = tf.data.Dataset.from_tensor_slices(NUMBERS)
    return {
        "batch": whole.batch(BATCH),
        "seeded": whole.shuffle(SAMPLES, seed=7).batch(BATCH),
        "even": whole.take(18).batch(6),
        "unknown": whole.filter(lambda number: number[0] != 3).batch(BATCH),
        "repeat": whole.batch(BATCH).repeat(),
        "single": whole.batch(1),
        "mapped": whole.map(lambda number: number + 0).shuffle(7, seed=3).batch(BATCH).map(tf.abs),
        "longest": whole.map(lambda number: number + 0).padded_batch(BATCH, [None]),
    }


def all_seen():
    keras.utils.set_random_seed(1)
    found = {
        "arrays": seen(NUMBERS, batch_size=BATCH, epochs=2, shuffle=False),
        "arrays_seeded": seen(NUMBERS, batch_size=BATCH, epochs=2),
        "few": seen(NUMBERS[:2], batch_size=BATCH, epochs=2),
        "later_epochs": seen(NUMBERS, batch_size=8, epochs=3, initial_epoch=2),
        "py_dataset": seen(Batches(), epochs=1, shuffle=False),
        "generator": seen(generator(SAMPLES - 5 * tf.mpi.rank()), epochs=1),
    }
    for name, dataset in datasets().items():
        arguments = {"steps_per_epoch": 3, "epochs": 2} if name == "repeat" else {"epochs": 1}
        found[f"dataset_{name}"] = seen(dataset, **arguments)
    return found


def all_seen_unseeded():
    """One epoch of each, in an undefined order."""
    tf.random.set_seed(None)
    whole = tf.data.Dataset.from_tensor_slices(NUMBERS)
    return {
        "arrays": seen(NUMBERS, batch_size=BATCH),
        "py_dataset": seen(Batches(), shuffle=True),
        "dataset": seen(whole.shuffle(SAMPLES).batch(BATCH)),
    }


def compiled_places(size, drop_remainder):
    """By batch [samples here, their positions, samples on all ranks] in XLA; and the traces."""
    from tensorflow.mpi._src.data import batch_shard
    from tensorflow.mpi._src.global_batch.batch import Part

    traces = []

    def places(shard):
        traces.append(shard)
        part = Part(shard)
        whole = tf.ones(part.whole_rows()[None])  # a shape, which must be static for XLA
        mine = tf.math.cumsum(whole, exclusive=True)[part.first_row() :]
        return mine[: tf.shape(shard.data)[0]], part.whole_rows()

    dataset = tf.data.Dataset.from_tensor_slices(NUMBERS).batch(size, drop_remainder)
    element = batch_shard.element_maker(batch_shard.batch_sizes(dataset))
    compiled = tf.function(places, jit_compile=compiles())
    step = tf.function(lambda iterator: (shard := next(iterator), compiled(shard)))
    iterator, found = iter(batch_shard.shard_batches(dataset, element)), []
    for _ in range(len(dataset)):
        shard, (mine, whole) = step(iterator)
        found.append([shard.data.numpy().ravel().tolist(), mine.numpy().tolist(), int(whole)])
    return found, len(traces)


class Counting(keras.Model):
    """A classifier that counts the traces of its step."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3, activation="softmax")
        self.traces = 0

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        self.traces += 1
        return super().train_step(data)


def trained(fit, **compiled):
    """The result of a fit of a new classifier."""
    keras.utils.set_random_seed(2)
    model = Counting()
    compiled = {"metrics": ["accuracy"], **compiled}
    model.compile(keras.optimizers.SGD(0.2, momentum=0.9), CROSS_ENTROPY, **compiled)
    history = fit(model).history
    values = {name: encode(np.array(value, np.float64)) for name, value in history.items()}
    values["weights"] = encode(np.concatenate([w.ravel() for w in model.dense.get_weights()]))
    evaluated = model.evaluate(X, Y, batch_size=4, verbose=0)
    values["evaluate"] = encode(np.array(evaluated, np.float64))
    return {"values": values, "traces": model.traces}


CROSS_ENTROPY = "sparse_categorical_crossentropy"
FIT = {"batch_size": BATCH, "epochs": 2, "verbose": 0}


def samples(count, number):
    return tf.data.Dataset.from_tensor_slices((X[:count], Y[:count])).batch(number)


def absent_weights(sent):
    """Batches with None for the weights; `sent`: from rank 0 to the others."""
    noisy = samples(21, 10).map(lambda x, y: (x + (noise(0.0) if sent else 0.0), y, None))
    return trained(lambda m: m.fit(noisy, epochs=2, verbose=0))


def noise(scale):
    return tf.random.uniform([], seed=5) * scale


WEIGHTED = {"class_weight": {0: 0.5, 1: 2.0, 2: 1.0}, "validation_split": 0.3}
TRAINED = {
    "arrays": lambda: trained(lambda m: m.fit(X, Y, **WEIGHTED, **FIT)),
    "sample_weight": lambda: trained(
        lambda m: m.fit(X, Y, sample_weight=WEIGHTS, **FIT), run_eagerly=True
    ),
    "dataset": lambda: trained(
        lambda m: m.fit(samples(21, 10), validation_data=samples(4, 3), epochs=2, verbose=0)
    ),
    "fewer_than_ranks": lambda: trained(lambda m: m.fit(X[:3], Y[:3], **FIT | {"batch_size": 2})),
    "several_per_execution": lambda: trained(
        lambda m: m.fit(samples(21, 10), epochs=2, steps_per_epoch=3, verbose=0),
        steps_per_execution=2,
    ),
    "absent_weights": lambda: absent_weights(False),
    "absent_weights_sent": lambda: absent_weights(True),
    "compiled": lambda: trained(
        lambda m: m.fit(samples(21, 10), epochs=2, verbose=0), jit_compile=compiles()
    ),
}


def by_python(row):
    return tf.ensure_shape(tf.numpy_function(lambda x: x, [row], tf.float32), [3])


def predictions():
    keras.utils.set_random_seed(3)
    x = keras.Input((3,))
    model = keras.Model(x, {"twice": 2 * x, "rest": [x, keras.layers.Dense(2)(x)]})
    batched = tf.data.Dataset.from_tensor_slices(X)
    given = {
        "arrays": (X, {"batch_size": BATCH}),
        "few": (X[:1], {"batch_size": BATCH}),
        "unknown": (batched.filter(lambda row: row[0] < 0).batch(4), {}),
        "generator": (((X[i : i + 4],) for i in range(0, SAMPLES, 4)), {}),
        "steps": (batched.batch(4).repeat(), {"steps": 7}),
        "python": (batched.map(by_python).batch(4), {}),
    }
    found = {}
    for name, (data, arguments) in given.items():
        outputs = model.predict(data, verbose=0, **arguments)
        found[name] = {
            "twice": encode(outputs["twice"]),
            "same": encode(outputs["rest"][0]),
            "dense": encode(outputs["rest"][1]),
        }

    class Total(keras.layers.Layer):  # its output does not have one entry per input sample
        def call(self, inputs):
            return tf.reduce_sum(inputs, 0, keepdims=True)

    total = keras.Sequential([keras.layers.InputLayer((3,)), Total()])
    found["total"] = {"total": encode(total.predict(X, batch_size=BATCH, verbose=0))}

    class Text(keras.layers.Layer):
        def call(self, inputs):
            return tf.strings.as_string(inputs[:, 0])

    text = keras.Sequential([keras.layers.InputLayer((3,)), Text()])
    texts = text.predict(X, batch_size=BATCH, verbose=0)
    found["text"] = {"text": encode(np.array([float(one) for one in texts]))}
    return found


def main():
    found = {"seen": all_seen(), "unseeded": all_seen_unseeded(), "predicted": predictions()}
    if tf.mpi.size() > 1:
        found["compiled"] = [compiled_places(5, False), compiled_places(5, True),
                             compiled_places(6, True), compiled_places(1, True)]  # fmt: skip
    found["trained"] = {name: train() for name, train in TRAINED.items()}
    result(found)


main()
