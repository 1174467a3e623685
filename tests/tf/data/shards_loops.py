"""Loops over datasets: with tf.mpi.shard, or unchanged with TF_MPI_SHARD=dataset.

Arguments: keras, tf_keras, for their metrics and models; default both.
"""

import gc
import os
import sys
import warnings

import keras
import numpy as np
import tensorflow as tf
import tf_keras
from common import result

warnings.filterwarnings("ignore", "To make it possible to preserve tf.data options")
KERAS = [api for api in (keras, tf_keras) if api.__name__ in sys.argv[1:] or not sys.argv[1:]]
WHOLE = tf.data.Dataset.range(23)
UNKNOWN = WHOLE.filter(lambda number: number >= 0)


SPARSE = tf.data.Dataset.from_tensor_slices(tf.sparse.from_dense(tf.range(23)[:, None]))
LENGTHS = [1, 3] * 4 + [1] * 7
DRAWN = WHOLE.map(lambda number: number + tf.random.uniform([], 0, 1, tf.int64))  # by rank 0
RAGGED = tf.data.Dataset.from_tensor_slices(tf.RaggedTensor.from_row_lengths(range(23), LENGTHS))


def mine(dataset):
    return dataset if os.environ["TF_MPI_SHARD"] == "dataset" else tf.mpi.shard(dataset)


def seen(dataset):
    return [tf.reshape(dense(step), [-1]).numpy().tolist() for step in mine(dataset)]


def dense(step):
    if isinstance(step, tf.experimental.Optional):
        return step.get_value()
    if isinstance(step, tf.RaggedTensor):
        return step.flat_values
    return tf.sparse.to_dense(step) if isinstance(step, tf.SparseTensor) else step


@tf.function
def seen_in_function():
    numbers = tf.TensorArray(tf.int64, 0, dynamic_size=True)
    for batch in mine(WHOLE.batch(5)):
        for number in batch:
            numbers = numbers.write(numbers.size(), number)
    return numbers.stack()


def seen_by_session():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        dataset = mine(tf.data.Dataset.range(23).batch(5))
        batch = tf.compat.v1.data.make_one_shot_iterator(dataset).get_next()
        numbers = []
        while True:
            try:
                numbers.append(session.run(batch).tolist())
            except tf.errors.OutOfRangeError:
                return numbers


def seen_after_a_break():
    """An abandoned iterator does not affect the next one."""
    part = mine(WHOLE.shuffle(23).batch(4))
    for _ in part:
        break
    return [step.numpy().tolist() for step in part.prefetch(2)]


def metrics(api):
    """Sums over all samples: after two epochs, and after a reset and another one."""
    metric = api.metrics.Sum()
    sums = []
    for epochs in (2, 1):
        for _ in range(epochs):
            for batch in mine(WHOLE.batch(5)):
                metric.update_state(tf.cast(batch, tf.float32))
        if tf.mpi.rank() == 0:
            metric.result()  # not collective
        sums.append(float(metric.result()))
        metric.reset_state()
    return sums


def kept_on_one_rank():
    """Ranks meet at the end of a dataset, or do not, whatever a garbage collector has taken."""
    metric = keras.metrics.Sum()
    for batch in mine(WHOLE.batch(5)):
        metric.update_state(tf.cast(batch, tf.float32))
    if tf.mpi.rank() == 1:
        del metric
        gc.collect()
    return sum(1 for _ in mine(WHOLE.batch(5)))


def of_own_classes(api):
    """Sums in a custom class, with values added once per batch: equal to one process.

    The mean of the batches' means is 11.5, their sum 69, for 6 batches.
    """

    class Own(api.metrics.Metric):  # type: ignore[name-defined]
        def __init__(self):
            super().__init__(name="own")
            self.total = self.add_weight(name="total", initializer="zeros")
            self.batches = self.add_weight(name="batches", initializer="zeros")
            self.kept = self.add_weight(name="kept", initializer="ones")
            self.times = 0

        def update_state(self, numbers):
            self.times += 1
            self.total.assign_add(tf.reduce_sum(numbers))
            self.batches.assign_add(1.0)

        def result(self):
            return tf.stack([self.total + 0, self.batches + 0, self.kept + 0])

    own, mean, total, before = Own(), api.metrics.Mean(), api.metrics.Sum(), api.metrics.Sum()
    before.update_state([7.0])  # a value that is not divided
    for batch in mine(tf.data.Dataset.range(24).batch(4)):
        numbers = tf.cast(batch, tf.float32)
        own.update_state(numbers)
        mean.update_state(tf.reduce_mean(numbers))
        total.update_state(tf.reduce_mean(numbers))
        before.update_state(numbers)
    values = [*own.result().numpy(), own.times, mean.result(), total.result(), before.result()]
    return [float(value) for value in values]


def of_functions(api):
    """Loops in functions: with existing state, over two epochs, and with a step that is a function.

    Reading on a single rank is not collective.
    """
    metric, mean, stepped = api.metrics.Sum(), api.metrics.Mean(), api.metrics.Sum()
    metric.update_state([7.0])

    @tf.function
    def step(numbers):
        stepped.update_state(numbers)

    @tf.function
    def epochs(count):
        for _ in tf.range(count):
            for batch in mine(tf.data.Dataset.range(24).batch(4)):
                numbers = tf.cast(batch, tf.float32)
                metric.update_state(numbers)
                mean.update_state(tf.reduce_mean(numbers))
                step(numbers)
        return metric.result()

    returned = epochs(2)
    if tf.mpi.rank() == 0:
        metric.result()
    values = [float(one.result()) for one in (metric, mean, stepped)]
    stepped.reset_state()
    epochs(1)
    return [float(returned), *values, float(metric.result()), float(stepped.result())]


def of_undivided_data(api):
    """Sums in loops inside that over a part: over undivided data, and over this rank's batch."""
    whole, called, own = api.metrics.Sum(), api.metrics.Sum(), api.metrics.Sum()
    undivided = tf.data.Dataset.range(24).batch(4)
    early = []

    @tf.function
    def call():
        for numbers in undivided:
            called.update_state(tf.cast(numbers, tf.float32))

    for number, batch in enumerate(tf.mpi.shard(undivided)):
        for numbers in tf.data.Dataset.from_tensor_slices(batch).batch(1):
            own.update_state(tf.cast(numbers, tf.float32))
        if number % 3 == 0:
            whole.reset_state()
            for numbers in undivided:
                whole.update_state(tf.cast(numbers, tf.float32))
            call()
            early.append(float(whole.result()))
    return early + [float(metric.result()) for metric in (whole, called, own)]


def of_a_part(api):
    """Early reads, and state that is not a sum, cover only a part: each names its first metric."""

    class Largest(api.metrics.Metric):  # type: ignore[name-defined]
        def __init__(self):
            super().__init__(name="largest")
            self.most = self.add_weight(name="most", initializer="zeros")

        def update_state(self, numbers):
            self.most.assign(tf.maximum(self.most, tf.reduce_max(numbers)))

        def result(self):
            return self.most + 0

    largest, broken, step_s = Largest(), api.metrics.Sum("broken"), api.metrics.Sum("step_s")

    @tf.function
    def step(numbers):
        step_s.update_state(numbers)
        return step_s.result()

    for number, batch in enumerate(mine(tf.data.Dataset.range(24).batch(4))):
        numbers = tf.cast(batch, tf.float32)
        largest.update_state(numbers)
        if os.environ["TF_MPI_SHARD"] == "auto":
            step(numbers)
            continue
        broken.update_state(numbers)
        if number == 2:
            break
    broken.result()
    return float(largest.result())


def of_steps(api):
    """A metric's value after train_on_batch, minus its value on the whole data.

    In Keras 3 it covers the last batch.
    """
    numbers = np.arange(24, dtype=np.float32)[:, None]
    labels = np.float32(numbers % 3 == 1)
    kernel = api.initializers.Constant(0.06)
    model = api.Sequential([api.layers.Dense(1, kernel_initializer=kernel, use_bias=False)])
    parts, whole = api.metrics.AUC(num_thresholds=20), api.metrics.AUC(num_thresholds=20)
    model.compile(api.optimizers.SGD(0.0), "mae", metrics=[parts])
    more = {} if api is keras else {"reset_metrics": False}
    for x, y in mine(tf.data.Dataset.from_tensor_slices((numbers, labels)).batch(4)):
        model.train_on_batch(x, y, **more)
    kept = slice(-4 if api is keras else 0, None)
    whole.update_state(labels[kept], tf.minimum(model(numbers[kept]), 1.0))
    return float(parts.result()) - float(whole.result())


def of_keras(api):
    """Keras iterates all data, or the part that it made: each difference to one process is 0.

    The mean of 0 to 22 is 11, which is also the mean error of a model that predicts 0.
    """
    numbers = np.arange(23, dtype=np.float32)[:, None]
    inputs = tf.data.Dataset.from_tensor_slices(numbers).batch(5)
    words = tf.constant([f"word{int(number)}" for number in numbers[:, 0]])
    texts = tf.data.Dataset.from_tensor_slices(words).batch(5)
    normalization = api.layers.Normalization()
    normalization.adapt(inputs)
    bins = [api.layers.Discretization(num_bins=4) for _ in range(2)]
    bins[0].adapt(inputs)
    bins[1].adapt(numbers)
    layers = [api.layers.StringLookup(), api.layers.TextVectorization()]
    for layer in layers:
        layer.adapt(texts)
    space = api.utils.FeatureSpace({"x": "float_normalized"}, output_mode="dict")
    space.adapt(inputs.unbatch().map(lambda x: {"x": x}))
    model = api.Sequential([api.layers.Dense(1, kernel_initializer="zeros", use_bias=False)])
    model.compile(api.optimizers.SGD(0.0), "mae")
    pairs = inputs.map(lambda x: (x, x))
    spaced = float(np.squeeze(space({"x": [[11.0]]})["x"]))
    left, right = api.utils.split_dataset(inputs.unbatch(), left_size=10)
    found = {
        "adapt": float(np.squeeze(normalization.mean)) - 11,
        "bins": float(np.abs(np.subtract(*(one.bin_boundaries for one in bins))).max()),
        "words": [len(layer.get_vocabulary()) for layer in layers] - np.array([24, 25]),
        "space": spaced,
        "split": [int(left.cardinality()) - 10, int(right.cardinality()) - 13],
        "fit": model.fit(pairs, epochs=2, verbose=0).history["loss"][-1] - 11,
        "evaluate": model.evaluate(pairs, verbose=0) - 11,
        "predict": len(model.predict(inputs, verbose=0)) - 23,
    }
    return {name: float(np.abs(one).max()) for name, one in found.items()}


found = {
    "kept": kept_on_one_rank(),  # before other metrics
    "reduced": int(WHOLE.reduce(np.int64(0), lambda total, number: total + number)),
    "batches": seen(WHOLE.batch(5)),
    "shuffled": seen(WHOLE.shuffle(23).batch(5).map(lambda batch: batch)),
    "part_of_a_part": seen(tf.mpi.shard(WHOLE.batch(4)).prefetch(1))
    if os.environ["TF_MPI_SHARD"] == "dataset"
    else seen(WHOLE.batch(4)),
    "sparse": seen(SPARSE.batch(5)),
    "ragged": seen(RAGGED.batch(4)),
    "elements": seen(WHOLE),
    "elements_unknown": seen(UNKNOWN),
    "elements_optional": seen(DRAWN.map(tf.experimental.Optional.from_value)),
    "elements_shuffled": seen(WHOLE.shuffle(23)),
    "session": seen_by_session(),
    "break": seen_after_a_break(),
}
numbers = seen_in_function().numpy().tolist()
longest = int(tf.mpi.allreduce(len(numbers), "max"))
if os.environ["TF_MPI_SHARD"] == "dataset":
    found["keras"] = [of_keras(api) for api in KERAS]
found["metrics"] = [metrics(api) for api in KERAS]
found["own metrics"] = [of_own_classes(api) for api in KERAS]
found["functions"] = [of_functions(api) for api in KERAS]
if os.environ["TF_MPI_SHARD"] == "auto":
    found["undivided"] = [of_undivided_data(api) for api in KERAS]
found["largest"] = [of_a_part(api) for api in KERAS]
found["steps"] = [of_steps(api) for api in KERAS]
found["function"] = [numbers[i : i + 1] for i in range(longest)]
result(found)
