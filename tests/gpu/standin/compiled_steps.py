"""Steps that XLA compiles for GPUs, run on ranks with simulated GPUs.

    mpirun -np 2 tests/gpu/standin/run.sh PYTHON tests/gpu/standin/compiled_steps.py

Each rank and step feeds other gradients; FAKE_CUDA_DELAY_US makes them late. After a step the GPU's
memory must contain their mean over the ranks. Exits with the number of steps without one. Only
dense gradients: sparse ones need a kernel that makes room for all ranks' rows, and no kernels run
here.
"""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from apply_ops import RANK, SIZE, on_gpu

SHAPE = (600, 400)
STEPS = 10

with tf.device("GPU:0"):
    VARIABLE = tf.Variable(np.ones(SHAPE, np.float32))
OPTIMIZER = keras.optimizers.SGD(0.1)


@tf.function(jit_compile=True)
def step(gradient: Any) -> None:
    OPTIMIZER.apply_gradients([(gradient, VARIABLE)])


def draw(rank: int, number: int) -> np.ndarray:
    generator = np.random.default_rng([rank, number])
    return generator.integers(1, 1000, size=SHAPE).astype(np.float32)


def main() -> int:
    failed = 0
    OPTIMIZER.build([VARIABLE])
    for number in range(STEPS):
        step(tf.constant(draw(RANK, number)))
        mean = np.sum([draw(rank, number) for rank in range(SIZE)], axis=0) / np.float32(SIZE)
        if not on_gpu(mean):
            failed += 1
            print(f"rank {RANK}: step {number}: no average on the GPU", flush=True)
    print(f"rank {RANK}: {STEPS} steps, {failed} without an average", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
