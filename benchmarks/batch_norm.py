"""The cost per step of whole-batch batch normalization, compared with per-rank normalization.

    mpirun -np 2 --bind-to core python benchmarks/batch_norm.py 3 8 [--tf_keras] [--rounds 20]

ResNets for images of 32 x 32 with the given numbers of blocks in each of three stages; 3 blocks
make 21 layers of batch normalization, 8 make 51. A custom loop alternates steps of the two kinds,
so that other load on the machine affects both. Prints the medians, and the median ratio of the
pairs, of wall-clock time and of CPU time, which excludes waiting for a core.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

if "--tf_keras" in sys.argv:
    os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf

keras: Any = tf.keras
layers: Any = keras.layers


def resnet(blocks: int) -> Any:
    images = keras.Input((32, 32, 3))

    def conv_and_norm(x: Any, filters: int, size: int, strides: int = 1) -> Any:
        x = layers.Conv2D(filters, size, strides, padding="same", use_bias=False)(x)
        return layers.BatchNormalization()(x)

    x = layers.ReLU()(conv_and_norm(images, 16, 3))
    for stage, filters in enumerate((16, 32, 64)):
        for block in range(blocks):
            strides = 2 if stage and not block else 1
            y = layers.ReLU()(conv_and_norm(x, filters, 3, strides))
            y = conv_and_norm(y, filters, 3)
            x = conv_and_norm(x, filters, 1, strides) if strides == 2 else x
            x = layers.ReLU()(layers.add([x, y]))
    return keras.Model(images, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def make_step(way: str, blocks: int, data: Any) -> Any:
    """A training step; `way` is the value of TF_MPI_SYNC_BATCHNORM while it is traced."""
    os.environ["TF_MPI_SYNC_BATCHNORM"] = way
    model, optimizer = resnet(blocks), keras.optimizers.SGD(0.01)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    step(*data)  # traces it
    return lambda: float(step(*data))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("blocks", type=int, nargs="+")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64, help="samples per rank")
    parser.add_argument("--tf_keras", action="store_true")
    args = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    drawn = np.random.default_rng(0)
    rows = args.batch * tf.mpi.size()
    x, y = drawn.normal(size=(rows, 32, 32, 3)).astype("f"), drawn.integers(0, 10, rows)
    (data,) = tf.mpi.shard(tf.data.Dataset.from_tensor_slices((x, y)).batch(rows))
    for blocks in args.blocks:
        steps = {way: make_step(way, blocks, data) for way in ("0", "auto")}
        times: dict[str, list[tuple[float, float]]] = {way: [] for way in steps}
        for number in range(args.rounds + 1):  # the first is a warm-up
            for way in sorted(steps, reverse=bool(number % 2)):
                before = time.perf_counter(), time.process_time()
                steps[way]()
                after = time.perf_counter(), time.process_time()
                times[way].append((after[0] - before[0], after[1] - before[1]))
        if tf.mpi.rank() == 0:
            (per_rank, per_rank_cpu), (whole, whole_cpu) = (
                1e3 * np.array(times[way][1:]).T for way in ("0", "auto")
            )
            print(
                f"{blocks} blocks a stage, ms: {np.median(per_rank):.0f} per rank, "
                f"{np.median(whole):.0f} with the whole batch "
                f"({100 * (np.median(whole / per_rank) - 1):+.1f} %); CPU ms "
                f"{np.median(per_rank_cpu):.0f} and {np.median(whole_cpu):.0f} "
                f"({100 * (np.median(whole_cpu / per_rank_cpu) - 1):+.1f} %)",
                flush=True,
            )


if __name__ == "__main__":
    main()
