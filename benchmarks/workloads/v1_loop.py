"""A compat.v1 graph and Session with feeds and GradientDescentOptimizer (embedding: Adagrad).

With --raw, tf.gradients computes the gradients and the optimizer only applies them.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from benchmarks.workloads import clock, peers
from benchmarks.workloads.models import BATCHES, LEARNING_RATE, WORKLOADS, Parameter

v1 = tf.compat.v1


def variable(parameter: Parameter) -> Any:
    initializer = v1.random_normal_initializer(stddev=parameter.deviation, seed=1)
    if parameter.deviation == 0:
        initializer = v1.zeros_initializer()
    return v1.get_variable(parameter.name, parameter.shape, initializer=initializer)


def main() -> None:
    options = clock.options()
    workload = WORKLOADS[options.workload]
    v1.disable_eager_execution()
    x, y = workload.data(options.rank, BATCHES * workload.batch, options.rows)

    inputs = v1.placeholder(x.dtype, [None, *x.shape[1:]])
    labels = v1.placeholder(tf.int32, [None])
    variables = [variable(parameter) for parameter in workload.parameters(options.rows)]
    logits = workload.forward(variables, inputs)
    loss = tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    )
    if options.workload == "embedding":
        optimizer = v1.train.AdagradOptimizer(LEARNING_RATE)
    else:
        optimizer = v1.train.GradientDescentOptimizer(LEARNING_RATE)
    peer = peers.start(options)
    optimizer = peer.v1_optimizer(optimizer)
    if options.raw:
        train = optimizer.apply_gradients(zip(tf.gradients(loss, variables), variables))
    else:
        train = optimizer.minimize(loss)

    config = v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    with v1.Session(config=config) as session:
        session.run(v1.global_variables_initializer())
        peer.v1_broadcast(session)

        def step(index: int) -> None:
            begin = index % BATCHES * workload.batch
            batch = slice(begin, begin + workload.batch)
            session.run([train, loss], {inputs: x[batch], labels: y[batch]})

        times = clock.timed_loop(options, step)
        clock.report(options, times, clock.digest(session.run(variables[-1])))


if __name__ == "__main__":
    main()
