"""Ordinary scripts for tf.distribute, which do not mention ranks.

    strategies.py quick|loop|keras|workers|tf_keras

Prints what one process prints: the weights after each case, and counts.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np
import tensorflow as tf
from common import encode, result

v1 = tf.compat.v1
IS_RANK = "OMPI_COMM_WORLD_RANK" in os.environ
random = np.random.default_rng(0)
x = random.normal(size=(50, 4)).astype("f")
y = np.tanh(x.sum(1, keepdims=True))
printed: dict[str, Any] = {}


def encoded(values: Any) -> list[Any]:
    return [encode(np.asarray(value)) for value in values]


def fit(keras: Any, name: str, strategy: Any, batch_size: int = 16) -> None:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        layers = [keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)]
        model = keras.Sequential([keras.layers.Input((4,)), *layers])
        metrics = [keras.metrics.MeanAbsoluteError(), keras.metrics.TruePositives()]
        model.compile(keras.optimizers.Adam(0.05), "mse", metrics=metrics)
    data = tf.data.Dataset.from_tensor_slices((x, y > 0.1)).shuffle(50, seed=3).batch(batch_size)
    model.fit(data, epochs=2, verbose=0, validation_data=(x, y > 0.1))
    with strategy.scope():  # out of habit
        model.fit(x, y > 0.1, batch_size=batch_size, verbose=0, shuffle=False)
        model.set_weights(model.get_weights())
        measured = model.evaluate(x, y > 0.1, verbose=0)
    predicted = model.predict(x, verbose=0)
    printed[name] = encoded([*model.get_weights(), measured, predicted])


def samples_of_a_step(keras: Any) -> int:
    """The number of the 310 samples, each with its own weight, in the batch of one step."""
    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
        model = keras.Sequential([keras.layers.Input((310,)), layer])
        model.compile(keras.optimizers.SGD(0.5), "mse")
    data = tf.data.Dataset.from_tensor_slices((np.eye(310, dtype="f"), np.ones((310, 1), "f")))
    model.fit(data.shuffle(310).batch(31), steps_per_epoch=1, verbose=0)
    return int((model.get_weights()[0] != 0).sum())


def rows_of_steps(keras: Any) -> list[int]:
    """The number of rows of each step for batches of 16 and of 2."""
    rows = []

    class Model(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            rows.append(data[0].shape[0])  # none while the step is only inspected
            return super().train_step(data)

    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        model = Model([keras.layers.Dense(1)])
        model.compile("sgd", "mse", run_eagerly=True)
    model.fit(x[:18], y[:18], batch_size=16, verbose=0, shuffle=False)
    return [int(number) for number in rows if number is not None]


def step_of_its_own(keras: Any) -> None:
    """A train_step that divides the sum of its losses by the batch size; the parts are uneven."""

    class Model(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            with tf.GradientTape() as tape:
                losses = tf.reduce_mean((self(data[0]) - data[1]) ** 2, -1)
                loss = tf.nn.compute_average_loss(losses, global_batch_size=25)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
            return {"loss": loss}

    keras.utils.set_random_seed(1)
    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        model = Model([keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1))
    model.fit(x, y, batch_size=25, epochs=2, verbose=0, shuffle=False)
    printed["own step"] = encoded(model.get_weights())


def loop(keras: Any, name: str, strategy: Any) -> None:
    """A custom loop whose batch grows with the number of replicas."""
    batch_size = 8 * strategy.num_replicas_in_sync
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)

    def step(inputs: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = tf.reduce_mean((model(inputs[0]) - inputs[1]) ** 2, -1)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=batch_size)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    @tf.function
    def train(inputs: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(step, args=(inputs,)), axis=None)

    whole = tf.data.Dataset.from_tensor_slices((x[:44], y[:44]))

    def made(context: Any) -> Any:
        return whole.batch(context.get_per_replica_batch_size(batch_size))

    distributed = strategy.experimental_distribute_dataset(whole.batch(batch_size))
    losses = [float(train(inputs)) for inputs in distributed]
    losses += [float(train(inputs)) for inputs in strategy.distribute_datasets_from_function(made)]
    printed[name] = encoded([*model.get_weights(), losses])
    printed["weights"] = encoded(model.get_weights())


def workers(keras: Any, replicas: int) -> None:
    """A batch for each of two workers; TF_CONFIG describes them where ranks run."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    global_batch = 8 * strategy.num_replicas_in_sync * (replicas if not IS_RANK else 1)
    fit(keras, f"{replicas} workers", strategy, global_batch)
    printed["chief"] = strategy.cluster_resolver.task_id in (None, 0)
    printed["batch"] = global_batch


def session() -> None:
    with tf.Graph().as_default():
        v1.set_random_seed(5)
        strategy = v1.distribute.MirroredStrategy(["/cpu:0"])
        with strategy.scope():
            weight = v1.get_variable("w", [4, 1], initializer=v1.zeros_initializer())
            optimizer = v1.train.AdamOptimizer(0.05)
            data = v1.data.Dataset.from_tensor_slices((x, y)).batch(10).repeat()
            iterator = strategy.make_dataset_iterator(data)

            def step(inputs: Any) -> Any:
                loss = tf.reduce_mean((tf.matmul(inputs[0], weight) - inputs[1]) ** 2)
                with tf.control_dependencies([optimizer.minimize(loss)]):
                    return tf.identity(loss)

            loss = strategy.reduce("MEAN", strategy.experimental_run(step, iterator), axis=None)
            initialize = iterator.initialize()
            with v1.Session() as running:
                running.run([v1.global_variables_initializer(), initialize])
                losses = [running.run(loss) for _ in range(10)]
                printed["session"] = encoded([losses, running.run(weight)])


def refused() -> str:
    try:
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        tf.distribute.ParameterServerStrategy(resolver)
    except (NotImplementedError, ValueError) as error:
        return str(error)
    return "nothing"


def main() -> None:
    case = sys.argv[1]
    if case == "keras":  # two devices
        cpu = tf.config.list_physical_devices("CPU")[0]
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, two)
    if case == "workers" and IS_RANK:
        rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
        cluster = {"worker": [f"localhost:{port}" for port in (1234, 1235)]}
        task = {"type": "worker", "index": rank}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    if case == "tf_keras":
        import tf_keras as keras
    else:
        import keras
    mirrored = tf.distribute.MirroredStrategy
    if case == "quick":
        fit(keras, "mirrored", mirrored(["/cpu:0"]))
        loop(keras, "loop", mirrored(["/cpu:0"]))
        printed["samples"] = samples_of_a_step(keras)
        printed["rows"] = rows_of_steps(keras)
        step_of_its_own(keras)
        printed["refused"] = refused()
        session()
    elif case == "loop":
        loop(keras, "loop", mirrored(["/cpu:0"]))
    elif case == "workers":
        workers(keras, 2)
    else:
        fit(keras, "one device", tf.distribute.OneDeviceStrategy("/cpu:0"))
        fit(keras, "default", tf.distribute.get_strategy())
        fit(keras, "central", tf.distribute.experimental.CentralStorageStrategy(["/cpu:0"]))
        loop(keras, "mirrored loop", mirrored())
        printed["replicas"] = mirrored().num_replicas_in_sync
    result(printed)


main()
