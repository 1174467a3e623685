"""Times the work of fit before its first batch: medians of five calls, wall clock and thread CPU.

    mpirun -np 2 --bind-to core python -m benchmarks.workloads.fit_begins MODEL

MODEL: mlp, own (a custom class, whose forward pass fit inspects) or large (104 MB). With
TF_MPI_ENABLE=0: two processes of stock TensorFlow. The step itself is traced later.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import keras
import numpy as np

layers = keras.layers
CALLS = 5


class Own(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = [layers.Dense(512, "relu") for _ in range(6)]
        self.out = layers.Dense(10)

    def call(self, x: Any) -> Any:
        for layer in self.hidden:
            x = x + layer(x) if x.shape[-1] == 512 else layer(x)
        return self.out(x)


class Begins(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.at = (0.0, 0.0)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.at = time.perf_counter(), time.thread_time()


def model(name: str) -> Any:
    if name == "own":
        return Own()
    hidden = [8192, 2400] if name == "large" else [512]
    stack = [layers.Dense(size, "relu") for size in hidden]
    return keras.Sequential([keras.Input((784,)), *stack, layers.Dense(10)])


def main() -> None:
    drawn = np.random.default_rng(0)
    x, y = drawn.normal(size=(20000, 784)).astype(np.float32), drawn.integers(0, 10, 20000)
    clock, thread = [], []
    for _ in range(CALLS):
        fitted = model(sys.argv[1])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        fitted.compile("sgd", loss, metrics=["accuracy"])
        fitted(x[:1])
        begins = Begins()
        before = time.perf_counter(), time.thread_time()
        fitted.fit(x, y, batch_size=128, steps_per_epoch=1, verbose=0, callbacks=[begins])
        clock.append(begins.at[0] - before[0])
        thread.append(begins.at[1] - before[1])
    found = statistics.median(clock), statistics.median(thread)
    print(f"{sys.argv[1]}: {found[0]:.3f} s, CPU time of this thread {found[1]:.3f} s", flush=True)


if __name__ == "__main__":
    main()
