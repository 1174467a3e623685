"""hvd's tapes, optimizers and callbacks on ranks with different gradients; counts averages.

Runs the checks of hvd_sessions.py first.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from typing import Any

import horovod.tensorflow as hvd
import hvd_sessions  # noqa: F401  (its checks)
import numpy as np
import tensorflow as tf
from checks import check, equal, raises, run_all
from common import compiles
from counted import MEAN, RANK, SIZE, Counted, losses, rows_mean, variables

if os.environ.get("TF_USE_LEGACY_KERAS"):
    import tf_keras as keras
else:
    import keras

import horovod.tensorflow.keras as hvd_keras

GROUPS = "groups should be a non-negative integer"
PREDIVIDE = "gradient_predivide_factor not supported with op != Average"


@check
def tape():
    for wrap in (lambda f: f, tf.function):
        for op, times in ((hvd.Average, 1), (hvd.Sum, SIZE)):
            w, b = variables()

            @wrap
            def gradients():
                with tf.GradientTape() as tape:
                    loss = losses(w, b)  # noqa: B023
                return hvd.DistributedGradientTape(tape, op=op).gradient(loss, [w, b])  # noqa: B023

            gradients()
            with Counted(2):
                of_w, of_b = gradients()
            equal(of_w, np.full(3, times * MEAN), 1e-6)
            assert isinstance(of_b, tf.IndexedSlices)
            equal(tf.convert_to_tensor(of_b), times * rows_mean(), 1e-6)


@check
def tape_options():
    w, b = variables()

    def gradients(**options):
        with tf.GradientTape(persistent=True) as tape:
            loss = losses(w, b)
        return hvd.DistributedGradientTape(tape, **options), loss

    made, loss = gradients(
        compression=hvd.Compression.fp16,
        gradient_predivide_factor=2.0,
        sparse_as_dense=True,
        groups=2,
    )
    of_w, of_b = made.gradient(loss, [w, b])
    equal(of_w, np.full(3, MEAN), 1e-3)
    equal(of_b, rows_mean(), 1e-2)
    equal(made.gradient(loss, w), np.full(3, MEAN), 1e-3)
    equal(made.gradient(loss, {"w": w})["w"], np.full(3, MEAN), 1e-3)
    made, loss = gradients()
    made.register_local_source(w)
    equal(made.gradient(loss, [w, b])[0], np.full(3, (RANK + 1) / SIZE), 1e-6)
    local, everyones = made.get_local_and_global_gradients(loss, [w, b])
    assert local[0][0] is w and everyones[0][0] is b
    made, loss = gradients(scale_local_gradients=False)
    made.register_local_source(w)
    equal(made.gradient(loss, [w])[0], np.full(3, RANK + 1))
    other = tf.Variable(tf.zeros([3]))
    with tf.GradientTape() as tape:
        loss = (RANK + 1.0) * tf.reduce_sum(w + other)
    made = hvd.DistributedGradientTape(tape, scale_local_gradients=False)
    made.register_local_source(w)
    mine, everyones = made.gradient(loss, [w, other])  # TensorFlow returns one tensor for both
    equal(mine, np.full(3, RANK + 1))
    equal(everyones, np.full(3, MEAN), 1e-6)
    made, loss = gradients()
    assert made.gradient(loss, [tf.Variable(1.0), w])[0] is None
    raises(ValueError, lambda: gradients(gradient_predivide_factor=2.0, op=hvd.Sum), PREDIVIDE)
    raises(ValueError, lambda: gradients(groups=0), GROUPS)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        gradients(num_groups=1)
    assert "`num_groups` has been replaced by `groups`" in "".join(str(w.message) for w in warned)
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    layer.build((None, 1))
    with tf.GradientTape() as tape:
        loss = (RANK + 1.0) * (tf.reduce_sum(layer.kernel) + tf.reduce_sum(w))
    made = hvd.PartialDistributedGradientTape(tape, local_layers=layer)
    of_kernel, of_w = made.gradient(loss, [layer.kernel, w])
    equal(of_kernel, [[(RANK + 1) / SIZE]], 1e-6)
    equal(of_w, np.full(3, MEAN), 1e-6)
    no_layer = "All local layers must be of tf.keras.layers.Layer type"
    raises(ValueError, lambda: hvd.PartialDistributedGradientTape(tape, local_layers=w), no_layer)


@check
def no_average_but_the_scripts():
    """A plain optimizer averages nothing, as with Horovod without its wrappers."""
    w, b = variables()
    with Counted(0):
        with tf.GradientTape() as tape:
            loss = losses(w, b)
        keras.optimizers.SGD(1.0).apply_gradients(zip(tape.gradient(loss, [w, b]), [w, b]))

        @tf.function
        def raw():
            tf.raw_ops.ResourceApplyGradientDescent(
                var=w.handle, alpha=1.0, delta=tf.fill([3], RANK + 1.0)
            )

        raw()
        tf.raw_ops.ResourceApplyGradientDescent(
            var=w.handle, alpha=1.0, delta=tf.fill([3], RANK + 1.0)
        )
    equal(w, np.full(3, -3.0 * (RANK + 1)))


@check
def tape_and_optimizer_average_once():
    w, b = variables()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = losses(w, b)
        tape = hvd.DistributedGradientTape(tape, op=hvd.Sum)
        optimizer.apply_gradients(zip(tape.gradient(loss, [w, b]), [w, b]))

    step()
    equal(w, np.full(3, -SIZE * MEAN), 1e-6)
    with Counted(2):
        step()
    equal(w, np.full(3, -2 * SIZE * MEAN), 1e-6)


def model_of(optimizer, **options):
    """A layer with one weight; its initial gradient is -2 (RANK + 1) for a sample of 1."""
    model = keras.Sequential(
        [
            keras.layers.Input((1,)),
            keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
        ]
    )
    model.compile(optimizer, "mse", **options)
    return model


DATA = np.ones((4, 1), np.float32), np.full((4, 1), RANK + 1.0, np.float32)


@check
def keras_fit():
    for options in ({}, {"run_eagerly": True}, {"jit_compile": compiles()}):
        for op, times in ((hvd.Average, 1), (hvd.Sum, SIZE)):
            model = model_of(
                hvd.DistributedOptimizer(keras.optimizers.SGD(0.125), op=op), **options
            )
            with Counted(1):
                model.fit(*DATA, batch_size=4, epochs=1, verbose=0)
            equal(model.get_weights()[0], [[0.125 * 2 * times * MEAN]], 1e-6)


@check
def aggregation_helper():
    """A custom loop around Horovod's helper for eager code."""
    from horovod.tensorflow.gradient_aggregation_eager import (
        LocalGradientAggregationHelperEager as Helper,
    )

    def reduce(gradients, variables):
        assert len(gradients) == len(variables)
        return [hvd.allreduce(gradient) for gradient in gradients]

    for traced in (False, True):
        sgd = keras.optimizers.SGD(1.0)
        w = tf.Variable([0.0, 0.0])
        sgd.build([w])
        helper = Helper(2, reduce, False, False)

        def one(helper=helper, sgd=sgd, w=w):
            with tf.GradientTape() as tape:
                loss = (RANK + 1) * tf.reduce_sum(w)
            pairs = list(zip(helper.compute_gradients(tape.gradient(loss, [w]), [w]), [w]))
            helper.apply_gradients(lambda: sgd.apply_gradients(pairs), sgd, pairs)

        step = tf.function(one) if traced else one
        for number in range(4):
            step()
            assert int(helper.counter) == (number + 1) % 2
            equal(w, [-2 * MEAN * ((number + 1) // 2)] * 2, 1e-6)
        assert int(sgd.iterations) == 4


@check
def keras_passes_per_step():
    for average in (False, True):
        optimizer = hvd.DistributedOptimizer(
            keras.optimizers.SGD(0.125),
            backward_passes_per_step=2,
            average_aggregated_gradients=average,
        )
        model = model_of(optimizer)
        with Counted(1):
            model.fit(*DATA, batch_size=4, epochs=3, verbose=0)
        assert int(np.asarray(optimizer.iterations)) == 3
        assert int(optimizer._agg_helper.counter) == 1
        equal(model.get_weights()[0], [[0.125 * 2 * MEAN * (1 if average else 2)]], 1e-6)


@check
def keras_scaled_updates():
    """A LossScaleOptimizer around hvd's: if one rank's gradients overflow, all skip the step."""
    x, y = (np.concatenate([data, data]) for data in DATA)
    x[0] = np.inf if RANK == SIZE - 1 else 1.0
    for passes, op, updates in ((1, hvd.Average, 1), (1, hvd.Sum, SIZE), (2, hvd.Average, 0)):
        sgd = keras.optimizers.SGD(0.125)
        inner = hvd.DistributedOptimizer(sgd, op=op, backward_passes_per_step=passes)
        optimizer = keras.mixed_precision.LossScaleOptimizer(inner, initial_scale=8)
        model = model_of(optimizer)
        model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
        equal(model.get_weights()[0], [[updates * 0.125 * 2 * MEAN]], 1e-6)
        equal(getattr(optimizer, "dynamic_scale", getattr(optimizer, "loss_scale", None)), 4.0)


@check
def keras_process_sets_and_local_layers():
    model = model_of(hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.125)))
    layer = model.layers[-1]
    import horovod.keras as hvd_keras_3

    optimizer = hvd_keras_3.PartialDistributedOptimizer(
        keras.optimizers.SGD(0.125), local_layers=layer
    )
    model.compile(optimizer, "mse")
    model.fit(*DATA, batch_size=4, verbose=0)
    equal(model.get_weights()[0], [[0.125 * 2 * (RANK + 1) / SIZE]], 1e-6)


@check
def keras_saves_and_loads():
    model = model_of(hvd.DistributedOptimizer(keras.optimizers.Adam(0.5)))
    model.fit(*DATA, batch_size=4, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/m.keras")
        plain = keras.models.load_model(f"{folder}/m.keras")
        loaded = hvd_keras.load_model(f"{folder}/m.keras")
    assert type(plain.optimizer) is keras.optimizers.Adam, type(plain.optimizer)
    assert type(loaded.optimizer) is not keras.optimizers.Adam
    for one in (model, loaded):
        with Counted(1):
            one.fit(*DATA, batch_size=4, verbose=0)
    equal(loaded.get_weights()[0], model.get_weights()[0], 1e-6)


@check
def keras_refuses():
    sgd = keras.optimizers.SGD()
    refused: list[tuple[Any, dict[str, Any], str]] = [
        (hvd, {"op": hvd.Adasum}, "op == Adasum is not supported yet with Keras"),
        (hvd_keras, {"op": hvd.Min}, "op currently only supports Average and Sum"),
        (hvd, {"backward_passes_per_step": 0}, "backward_passes_per_step must be > 0"),
        (hvd, {"groups": 0}, GROUPS),
        (hvd, {"op": hvd.Adasum, "average_aggregated_gradients": True},
         "Adasum does not support average_aggregated_gradients"),
    ]  # fmt: skip
    for api, options, words in refused:
        raises(ValueError, lambda: api.DistributedOptimizer(sgd, **options), words)  # noqa: B023


@check
def callbacks():
    size = SIZE
    model = model_of(hvd.DistributedOptimizer(keras.optimizers.SGD(0.5)))
    model.layers[-1].set_weights([np.array([[RANK + 1.0]])])
    seen: list[Any] = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if not seen:
                seen.append(float(self.model.get_weights()[0][0, 0]))

        def on_epoch_end(self, epoch, logs=None):
            seen.append(dict(logs))

    start = float(model.get_weights()[0][0, 0])
    rate = 0.25 * size
    made = [
        hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd_keras.callbacks.MetricAverageCallback(),
        hvd_keras.callbacks.LearningRateWarmupCallback(initial_lr=rate, warmup_epochs=2, verbose=1),
        hvd_keras.callbacks.LearningRateScheduleCallback(rate, 0.1, start_epoch=2),
        Look(),
    ]
    x, y = np.ones((8, 1), np.float32), np.full((8, 1), 2.0, np.float32)
    model.fit(x, y, batch_size=4, epochs=4, verbose=0, callbacks=made)
    equal(
        hvd.allgather_object(model.get_weights()[0].tolist()),
        [model.get_weights()[0].tolist()] * size,
    )
    weights = hvd.allgather_object(seen[0])
    assert len(set(weights)) == 1, weights
    assert start == RANK + 1
    rates = [logs["lr"] for logs in seen[1:]]
    middle = rate / size * (1.0 * (size - 1) / 2 + 1)
    equal(rates, [middle, rate, rate, rate * 0.1], 1e-6)
    everyone = hvd.allgather_object([logs["loss"] for logs in seen[1:]])
    equal(everyone, [everyone[0]] * size)
    local = model.layers[-1].kernel
    raises(
        ValueError,
        lambda: hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[1]),
        "All local variables must be of tf.Variable type",
    )
    model.layers[-1].set_weights([np.array([[RANK + 1.0]])])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    model.fit(
        x,
        y,
        verbose=0,
        callbacks=[
            hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=[local])
        ],
    )
    equal(model.get_weights()[0], [[RANK + 1.0]])
    assert hvd_keras.callbacks.BestModelCheckpoint().save_best_only


@check
def metrics_are_averaged():
    model = model_of(keras.optimizers.SGD(0.0))
    history = model.fit(
        *DATA, batch_size=4, verbose=0, callbacks=[hvd_keras.callbacks.MetricAverageCallback()]
    )
    equal(history.history["loss"], [np.mean((np.arange(SIZE) + 1.0) ** 2)], 1e-6)
    averages = hvd_keras.callbacks.MetricAverageCallback()
    logs = {"f1": np.array([RANK + 1.0, 2.0]), "loss": np.float32(RANK + 1)}
    averages.on_epoch_end(0, logs)  # F1Score has a value for each class
    equal(logs["f1"], [MEAN, 2.0])
    equal(logs["loss"], MEAN)
    if SIZE > 1:
        differ = f"the ranks have different metrics: rank {RANK} has"
        raises(ValueError, lambda: averages.on_epoch_end(0, {f"loss{RANK}": 1.0}), differ)
    schedule = hvd_keras.callbacks.LearningRateScheduleCallback
    raises(ValueError, lambda: schedule(None, 1.0), "Parameter `initial_lr` is required")
    smooth = schedule(1.0, 1.0, staircase=False)
    smooth.set_params({})
    raises(ValueError, smooth.on_train_begin, "Could not autodetect the number of steps per epoch")


@check
def sync_batch_norm():
    x = np.arange(4 * SIZE).reshape(SIZE * 4, 1).astype(np.float32) ** 2
    mine = x[4 * RANK : 4 * RANK + 4]
    layer, whole = hvd.SyncBatchNormalization(), keras.layers.BatchNormalization()

    def run(layer, data):
        data = tf.constant(data)
        with tf.GradientTape() as tape:
            tape.watch(data)
            y = layer(data, training=True)
            loss = tf.reduce_sum(
                y
                * tf.cast(tf.range(len(data)) + (4 * RANK if len(data) == 4 else 0), tf.float32)[
                    :, None
                ]
            )
        return y, tape.gradient(loss, data)

    y, gradient = run(layer, mine)
    y_whole, gradient_whole = run(whole, x)
    part = slice(4 * RANK, 4 * RANK + 4)
    equal(y, y_whole[part], 1e-4)
    equal(gradient, gradient_whole[part], 1e-4)
    equal(layer.moving_mean, whole.moving_mean, 1e-5)
    raises(ValueError, lambda: hvd.SyncBatchNormalization(fused=True), "support fused=True")


@check
def elastic():
    model = model_of(keras.optimizers.SGD(0.0))
    model.layers[-1].set_weights([np.array([[RANK + 1.0]])])
    state = hvd_keras.elastic.KerasState(model, batch=RANK, epoch=RANK + 5)
    unbuilt = keras.Sequential([keras.layers.Dense(1)])
    raises(ValueError, lambda: hvd_keras.elastic.KerasState(unbuilt), "Model must be built first")

    @hvd_keras.elastic.run
    def train(state, more):
        equal(model.get_weights()[0], [[1.0]])
        assert (state.batch, state.epoch) == (0, 5)
        state.batch = 7
        model.layers[-1].set_weights([np.array([[9.0]])])
        state.restore()
        equal(model.get_weights()[0], [[1.0]])
        assert state.batch == 0
        model.layers[-1].set_weights([np.array([[9.0]])])
        state.batch = more
        state.commit()
        state.restore()
        return state.batch

    assert train(state, 3) == 3
    equal(model.get_weights()[0], [[9.0]])
    callbacks = [
        hvd_keras.elastic.CommitStateCallback(state, 2),
        hvd_keras.elastic.UpdateBatchStateCallback(state),
        hvd_keras.elastic.UpdateEpochStateCallback(state),
    ]
    model.fit(*DATA, batch_size=2, epochs=2, verbose=0, callbacks=callbacks)
    assert (state.batch, state.epoch) == (0, 7), (state.batch, state.epoch)
    variable = tf.Variable([float(RANK)])
    states = hvd.elastic.TensorFlowState([variable], step=RANK)
    states.sync()
    equal(variable, [0.0])
    assert states.step == 0
    plain = hvd.elastic.ObjectState(step=RANK)
    plain.sync()
    assert plain.step == 0 and isinstance(plain, hvd.elastic.State)
    assert hvd.elastic.TensorFlowKerasState is hvd_keras.elastic.KerasState


@check
def draws_are_each_ranks_own():
    """As without tensorflow.mpi, shuffles differ by rank."""
    import random

    everyone = hvd.allgather_object(
        (random.random(), float(np.random.rand()), float(tf.random.uniform([])))
    )
    for values in zip(*everyone):
        assert len(set(values)) == SIZE, everyone


@check
def every_rank_writes_its_files():
    with tempfile.TemporaryDirectory() as folder:
        model = model_of(keras.optimizers.SGD())
        model.save_weights(f"{folder}/w.weights.h5")
        assert os.listdir(folder) == ["w.weights.h5"]
        path = tf.train.Checkpoint(v=tf.Variable(1.0)).save(f"{folder}/c")
        assert os.path.exists(path + ".index")


@check
def rank_0_alone_evaluates_and_saves():
    """As in scripts for Horovod: rank 0 waits for no other rank."""
    model = model_of(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    model.fit(*DATA, batch_size=4, verbose=0)
    if RANK == 0:
        model.evaluate(*DATA, verbose=0)
        assert len(model.predict(DATA[0], verbose=0)) == 4
        model_of(keras.optimizers.SGD(0.1)).fit(*DATA, verbose=0)
        with tempfile.TemporaryDirectory() as folder:
            model.save(f"{folder}/m.keras")
    equal(hvd.allreduce(1.0, op=hvd.Sum), SIZE)


@check
def tf_mpi_beside_it():
    """tf.mpi knows the ranks but does not divide the script's data."""
    assert (tf.mpi.rank(), tf.mpi.size(), tf.mpi.is_enabled()) == (RANK, SIZE, False)
    equal(tf.mpi.allreduce(RANK + 1.0), MEAN)
    tf.mpi.barrier()
    if SIZE > 1:
        raises(
            RuntimeError,
            lambda: tf.mpi.shard(tf.data.Dataset.range(4)),
            "through another library's API: use dataset.shard(",
        )
        raises(
            RuntimeError,
            lambda: tf.mpi.gather_batch(tf.ones([2])),
            "through another library's API: use horovod's allgather",
        )


run_all(sys.argv[1:])
