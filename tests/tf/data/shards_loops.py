"""Loops over datasets: with tf.mpi.shard, or as they are with TF_MPI_SHARD=dataset."""

import os

import keras
import tensorflow as tf
import tf_keras
from common import result

WHOLE = tf.data.Dataset.range(23)
UNKNOWN = WHOLE.filter(lambda number: number >= 0)


def mine(dataset):
    return dataset if os.environ["TF_MPI_SHARD"] == "dataset" else tf.mpi.shard(dataset)


def seen(dataset):
    return [tf.reshape(step, [-1]).numpy().tolist() for step in mine(dataset)]


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


found = {
    "batches": seen(WHOLE.batch(5)),
    "shuffled": seen(WHOLE.shuffle(23).batch(5).map(lambda batch: batch)),
    "part_of_a_part": seen(tf.mpi.shard(WHOLE.batch(4)).prefetch(1))
    if os.environ["TF_MPI_SHARD"] == "dataset"
    else seen(WHOLE.batch(4)),
    "elements": seen(WHOLE),
    "elements_unknown": seen(UNKNOWN),
    "elements_shuffled": seen(WHOLE.shuffle(23)),
    "session": seen_by_session(),
    "break": seen_after_a_break(),
}
numbers = seen_in_function().numpy().tolist()
longest = int(tf.mpi.allreduce(len(numbers), "max"))
found["metrics"] = [metrics(keras), metrics(tf_keras)]
found["function"] = [numbers[i : i + 1] for i in range(longest)]
result(found)
