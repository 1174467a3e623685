"""The cost of one process's dropout mask on N ranks, compared with a separate mask per rank.

    mpirun -np 2 python benchmarks/draws.py

Dropout of 100 MB per rank, by Keras's generator (a stateless op) and by tf.nn.dropout (a stateful
one), also compiled; the calls are interleaved. "even": batches that divide evenly among the ranks;
"any": other batches; "own": a separate mask.
"""

from __future__ import annotations

import time

import keras
import numpy as np
import tensorflow as tf
from tensorflow.mpi._src.data import batch_shard
from tensorflow.mpi._src.global_batch import batch
from tensorflow.mpi._src.runtime import group

ROWS, WIDTH, TIMES = 6400, 4096, 10
GENERATOR = keras.random.SeedGenerator(3)
KINDS = {
    "Keras": lambda x: keras.random.dropout(x, 0.5, seed=GENERATOR),
    "stateful": lambda x: tf.nn.dropout(x, 0.5, seed=5),
}


def make_calls(drop, compiled):
    x = tf.ones((ROWS, WIDTH))
    # Only their shapes matter: see batch_shard.Shard.
    first, whole = tf.zeros([group.rank * ROWS, 0]), tf.zeros([group.size * ROWS, 0])

    def on_shard(make_shard):
        def call(x, first, whole):
            with batch.step_on(make_shard(x, first, whole)):
                return tf.reduce_sum(drop(x))

        function = tf.function(call, jit_compile=compiled)
        return lambda: function(x, first, whole).numpy()

    own = tf.function(lambda x: tf.reduce_sum(drop(x)), jit_compile=compiled)
    return {
        "own": lambda: own(x).numpy(),
        "even": on_shard(lambda x, first, whole: batch_shard.EvenShard(x)),
        "any": on_shard(
            lambda x, first, whole: batch_shard.Shard(x, tf.constant(1.0), first, whole)
        ),
    }


def main():
    for name, drop in KINDS.items():
        for compiled in (False, True):
            ways = make_calls(drop, compiled)
            seconds: dict[str, list[float]] = {way: [] for way in ways}
            for number in range(TIMES + 2):
                for way, call in ways.items():
                    start = time.perf_counter()
                    call()
                    if number >= 2:
                        seconds[way].append(time.perf_counter() - start)
            if group.rank == 0:
                times = ", ".join(
                    f"{way} {1e3 * np.median(s):.0f} ({1e3 * min(s):.0f} to {1e3 * max(s):.0f})"
                    for way, s in seconds.items()
                )
                print(f"{name}{', compiled' if compiled else ''}, ms: {times}", flush=True)


if __name__ == "__main__":
    main()
