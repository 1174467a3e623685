"""hvd's compat.v1 optimizers and hooks in Sessions; for hvd_optimizers.py."""

from __future__ import annotations

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from checks import check, equal, raises
from counted import MEAN, RANK, SIZE, averages, losses, rows_mean

v1 = tf.compat.v1


def session_steps(make, steps, loss=None):
    """The values of w after each of `steps`, and the number of averages."""
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", initializer=np.zeros(3, np.float32))
        b = v1.get_variable("b", initializer=np.zeros((8, 2), np.float32))
        step = v1.train.get_or_create_global_step()
        train = make().minimize((loss or losses)(w, b), global_step=step)
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        found = []
        before = averages()
        for _ in range(steps):
            session.run(train)
            found.append(session.run(w)[0])
        return found, averages() - before, int(session.run(step)), session.run(b)


@check
def v1_optimizers():
    for op, times in ((hvd.Average, 1), (hvd.Sum, SIZE)):
        found, made, step, b = session_steps(
            lambda op=op: hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), op=op), 2
        )
        equal(found, -times * MEAN * np.array([1, 2]), 1e-6)
        equal(b, -2 * times * rows_mean(), 1e-6)
        assert made == (4 if SIZE > 1 else 0), made
        assert step == 2
    found, made, step, _ = session_steps(
        lambda: hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(1.0),
            backward_passes_per_step=2,
            sparse_as_dense=True,
            average_aggregated_gradients=True,
        ),
        4,
    )
    equal(found, -MEAN * np.array([0, 1, 1, 2]), 1e-6)
    assert step == 4 and made == (4 if SIZE > 1 else 0), (step, made)
    found, made, _, _ = session_steps(lambda: v1.train.GradientDescentOptimizer(1.0), 1)
    equal(found, [-(RANK + 1.0)])
    assert made == 0
    sgd = v1.train.GradientDescentOptimizer(1.0)
    raises(
        ValueError,
        lambda: hvd.DistributedOptimizer(sgd, backward_passes_per_step=2),
        "backward_passes_per_step > 1 is not yet supported for _LegacyOptimizer with eager",
    )


@check
def v1_adasum():
    """A gradient that is the same on all ranks counts once."""
    if SIZE & (SIZE - 1):
        return
    found, made, _, _ = session_steps(
        lambda: hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), op=hvd.Adasum),
        2,
        lambda w, b: tf.reduce_sum(w),
    )
    equal(found, [-1.0, -2.0], 1e-6)
    assert made == 0
    values = [-(rank + 1.0) * np.ones(3) for rank in range(SIZE)]
    while len(values) > 1:
        values = [
            (1 - a @ b / (2 * a @ a)) * a + (1 - a @ b / (2 * b @ b)) * b
            for a, b in zip(values[::2], values[1::2])
        ]
    for resource in (True, False):
        with tf.Graph().as_default(), v1.Session() as session:
            w = v1.get_variable("w", initializer=np.zeros(3, np.float32), use_resource=resource)
            optimizer = hvd.DistributedOptimizer(
                v1.train.GradientDescentOptimizer(1.0), op=hvd.Adasum
            )
            train = optimizer.minimize(tf.reduce_sum(w) * (RANK + 1.0))
            session.run(v1.global_variables_initializer())
            session.run(train)
            equal(session.run(w), values[0], 1e-6)
    raises(
        NotImplementedError,
        lambda: hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(1.0), op=hvd.Adasum, backward_passes_per_step=2
        ),
        "hvd.DistributedOptimizer does not support op=Adasum with",
    )


@check
def v1_aggregation_helper():
    """A custom optimizer around Horovod's helper for graphs."""
    from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper as Helper

    assert issubclass(v1.train.GradientDescentOptimizer, hvd._LegacyOptimizer)
    sgd = v1.train.GradientDescentOptimizer(1.0)
    assert isinstance(hvd.DistributedOptimizer(sgd), hvd._DistributedOptimizer)
    reduce = hvd._make_allreduce_grads_fn(
        "mine", "", "", hvd.Compression.none, False, hvd.Average, 1.0, 0, hvd.global_process_set
    )
    with tf.Graph().as_default(), v1.Session() as session:
        step = v1.train.get_or_create_global_step()
        variables = [v1.get_variable(name, initializer=np.zeros(3, np.float32)) for name in "wv"]
        helper = Helper(2, reduce, False, True, hvd.rank(), Helper._OPTIMIZER_TYPE_LEGACY)
        helper.register_local_var(variables[1])
        loss = (RANK + 1) * tf.add_n([tf.reduce_sum(one) for one in variables])
        pairs = list(
            zip(helper.compute_gradients(tf.gradients(loss, variables), variables), variables)
        )
        train = helper.apply_gradients(
            lambda: sgd.apply_gradients(pairs, global_step=step), sgd, pairs, global_step=step
        )
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        for number in range(4):
            session.run(train)
            updates = (number + 1) // 2
            w, v = session.run(variables)
            equal(w, [-MEAN * updates] * 3, 1e-6)
            equal(v, [-(RANK + 1) / SIZE * updates] * 3, 1e-6)  # this rank's own value
        assert session.run(step) == 4
    raises(ValueError, lambda: Helper(0, reduce, False, True, 0, ""), "backward_passes_per_step")


@check
def v1_hook():
    with tf.Graph().as_default():
        w = v1.get_variable("w", initializer=np.array([RANK], np.float32))
        v1.train.get_or_create_global_step()
        hooks = [hvd.BroadcastGlobalVariablesHook(SIZE - 1)]
        with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
            equal(session.run(w), [SIZE - 1])
