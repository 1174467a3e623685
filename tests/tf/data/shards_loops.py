"""Loops over datasets: with tf.mpi.shard, or as they are with TF_MPI_SHARD=dataset."""

import os

import keras
import numpy as np
import tensorflow as tf
import tf_keras
from common import result

WHOLE = tf.data.Dataset.range(23)
UNKNOWN = WHOLE.filter(lambda number: number >= 0)


SPARSE = tf.data.Dataset.from_tensor_slices(tf.sparse.from_dense(tf.range(23)[:, None]))
LENGTHS = [1, 3] * 4 + [1] * 7
RAGGED = tf.data.Dataset.from_tensor_slices(tf.RaggedTensor.from_row_lengths(range(23), LENGTHS))


def mine(dataset):
    return dataset if os.environ["TF_MPI_SHARD"] == "dataset" else tf.mpi.shard(dataset)


def seen(dataset):
    return [tf.reshape(dense(step), [-1]).numpy().tolist() for step in mine(dataset)]


def dense(step):
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
    """An iterator that is given up leaves the next one as it should be."""
    part = mine(WHOLE.shuffle(23).batch(4))
    for _ in part:
        break
    return [step.numpy().tolist() for step in part.prefetch(2)]


def metrics(api):
    """Sums over all samples: after two epochs, and after one more that begins anew."""
    metric = api.metrics.Sum()
    sums = []
    for epochs in (2, 1):
        for _ in range(epochs):
            for batch in mine(WHOLE.batch(5)):
                metric.update_state(tf.cast(batch, tf.float32))
        if tf.mpi.rank() == 0:
            metric.result()  # no meeting
        sums.append(float(metric.result()))
        metric.reset_state()
    return sums


def of_keras(api):
    """What Keras iterates is all data, or the part that it has made: each is 0 as in one process.

    The mean of 0 to 22 is 11, as is the mean error of a model that says 0.
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
    "batches": seen(WHOLE.batch(5)),
    "shuffled": seen(WHOLE.shuffle(23).batch(5).map(lambda batch: batch)),
    "part_of_a_part": seen(tf.mpi.shard(WHOLE.batch(4)).prefetch(1))
    if os.environ["TF_MPI_SHARD"] == "dataset"
    else seen(WHOLE.batch(4)),
    "sparse": seen(SPARSE.batch(5)),
    "ragged": seen(RAGGED.batch(4)),
    "elements": seen(WHOLE),
    "elements_unknown": seen(UNKNOWN),
    "elements_shuffled": seen(WHOLE.shuffle(23)),
    "session": seen_by_session(),
    "break": seen_after_a_break(),
}
numbers = seen_in_function().numpy().tolist()
longest = int(tf.mpi.allreduce(len(numbers), "max"))
if os.environ["TF_MPI_SHARD"] == "dataset":
    found["keras"] = [of_keras(keras), of_keras(tf_keras)]
found["metrics"] = [metrics(keras), metrics(tf_keras)]
found["function"] = [numbers[i : i + 1] for i in range(longest)]
result(found)
