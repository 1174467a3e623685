"""Losses in loops over a divided dataset: the lines that rank 0 prints, by the loss's name.

The argument `quick` selects half of the combinations of batches and loops.
"""

from __future__ import annotations

import os
import sys

import tensorflow as tf
from common import result
from tensorflow.mpi._src.runtime import log

weights = tf.Variable(tf.ones([4, 1]))
normalization = tf.keras.layers.BatchNormalization()
normalization.build([None, 4])
say = log.say


def errors(x, y):
    return (x @ weights - y) ** 2


def average_loss(x, y):
    """As in a script for tf.distribute, run with TF_MPI_SHARD=dataset."""
    os.environ["TF_MPI_SHARD"] = "dataset"
    loss = tf.nn.compute_average_loss(errors(x, y)[:, 0], global_batch_size=8)
    del os.environ["TF_MPI_SHARD"]
    return loss + tf.nn.scale_regularization_loss(tf.nn.l2_loss(weights))


LOSSES = {
    "sum": lambda x, y: tf.reduce_sum(errors(x, y)),
    "sum by a constant": lambda x, y: tf.reduce_sum(errors(x, y)) / 64,
    "one per sample": lambda x, y: errors(x, y)[:, 0],
    "mean of valid": lambda x, y: tf.reduce_sum(errors(x, y) * y) / tf.reduce_sum(y),
    "sum and a mean": lambda x, y: tf.reduce_sum(errors(x, y)) + tf.reduce_mean(y * weights[0]),
    "root of a mean": lambda x, y: tf.sqrt(tf.reduce_mean(errors(x, y))),
    "mean": lambda x, y: tf.reduce_mean(errors(x, y)),
    "mean by the shape": lambda x, y: (
        tf.reduce_sum(errors(x, y)) / tf.cast(tf.shape(x)[0], tf.float32)
    ),
    "mean of each": lambda x, y: tf.reduce_mean(
        tf.map_fn(lambda one: tf.reduce_sum(one[0] - one[1]) ** 2, (x @ weights, y), tf.float32)
    ),
    "mean of compat.v1": lambda x, y: tf.compat.v1.losses.mean_squared_error(y, x @ weights),
    "mean and a penalty": lambda x, y: tf.reduce_mean(errors(x, y)) + tf.nn.l2_loss(weights),
    "of normalized": lambda x, y: tf.reduce_mean(errors(normalization(x, training=True), y)),
    "for tf.distribute": average_loss,
    "Keras's": lambda x, y: tf.keras.losses.MeanSquaredError()(y, x @ weights),
    "no samples": lambda x, y: tf.reduce_sum(weights**2),
}


def data(drop_remainder):
    x = tf.random.stateless_normal([24, 4], [1, 2])
    samples = tf.data.Dataset.from_tensor_slices((x, tf.abs(x[:, :1])))
    return samples.batch(8, drop_remainder=drop_remainder)


def in_session(loss):
    """Like `lines_of`, for a compat.v1 graph."""
    v1 = tf.compat.v1
    said = lines()
    with tf.Graph().as_default():
        x = tf.random.stateless_normal([24, 4], [1, 2])
        samples = tf.data.Dataset.from_tensor_slices((x, tf.abs(x[:, :1]))).batch(8)
        x, y = v1.data.make_one_shot_iterator(tf.mpi.shard(samples)).get_next()
        weight = v1.get_variable("weight", [4, 1])
        v1.train.GradientDescentOptimizer(0.1).minimize(loss((x @ weight - y) ** 2))
    return list(said)


def in_train_on_batch(loss):
    """Like `lines_of`, for Keras's own step."""
    said = lines()
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", loss)
    for x, y in tf.mpi.shard(data(True)):
        model.train_on_batch(x, y)
    return list(said)


def step(loss):
    def taken(x, y):
        with tf.GradientTape() as tape:
            found = loss(x, y)
        return tape.gradient(found, weights)

    return taken


def lines():
    """Captures the lines printed from now on, including repeated ones."""
    said: list[str] = []
    log.say = said.append
    log._logged_keys.clear()
    return said


def lines_of(loss, dataset, in_function):
    """A Python loop over calls of a tf.function, or a loop inside the function."""
    said = lines()
    function = tf.function(step(loss))

    @tf.function
    def loop():
        for x, y in dataset:
            step(loss)(x, y)

    if in_function:
        loop()
    else:
        for x, y in dataset:
            function(x, y)
    return list(said)


value = float(average_loss(tf.ones([8, 4]), tf.zeros([8, 1])))
whole = {name: lines_of(loss, data(False), False) for name, loss in LOSSES.items()}
found = {
    f"{drop_remainder} {in_function}": {
        name: lines_of(loss, tf.mpi.shard(data(drop_remainder)), in_function)
        for name, loss in LOSSES.items()
    }
    for drop_remainder in (False, True)
    for in_function in (False, True)
    if drop_remainder == in_function or "quick" not in sys.argv[1:]
}
others = {
    "Keras's mean": in_train_on_batch("mse"),
    "Keras's sum": in_train_on_batch(tf.keras.losses.MeanSquaredError(reduction="sum")),
    "Session's mean": in_session(tf.reduce_mean),
    "Session's sum": in_session(tf.reduce_sum),
}
uneven = lines()
tf.mpi.shard(tf.data.Dataset.range(24).batch(5))
log.say = say
result({"whole": whole, "value": value, "found": found, "uneven": list(uneven), "others": others})
