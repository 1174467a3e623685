"""A tf.function with a GradientTape and compat.v1's GradientDescentOptimizer; --jit compiles it."""

from __future__ import annotations

import tensorflow as tf

from benchmarks.workloads import clock, peers
from benchmarks.workloads.models import BATCHES, LEARNING_RATE, WORKLOADS


def main() -> None:
    options = clock.options()
    workload = WORKLOADS[options.workload]
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    peer = peers.start(options)
    tf.random.set_seed(1)
    with peer.scope():
        variables = [
            tf.Variable(tf.random.normal(p.shape, stddev=p.deviation), name=p.name)
            for p in workload.parameters(options.rows)
        ]
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(LEARNING_RATE)

    def local_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with peer.tape(tf.GradientTape()) as tape:
            logits = workload.forward(variables, x)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
            scaled = peer.loss(loss)
        gradients = tape.gradient(scaled, variables)
        optimizer.apply_gradients(zip(gradients, variables))
        return loss

    @tf.function(jit_compile=options.jit)
    def train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return peer.run(local_step, (x, y))

    inputs, labels = workload.data(options.rank, BATCHES * workload.batch, options.rows)
    batches = list(zip(tf.split(inputs, BATCHES), tf.split(labels, BATCHES)))
    times = clock.timed_loop(options, lambda index: train_step(*batches[index % BATCHES]))
    clock.report(options, times, clock.digest(peer.local(variables[-1]).numpy()))


if __name__ == "__main__":
    main()
