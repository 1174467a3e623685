"""Times calls of a small model: CPU time of this process, and wall-clock time.

    python -m benchmarks.workloads.calls FILE

Runs as one process, or as a rank of benchmarks/calls.py. Writes medians as JSON: {call: [CPU,
wall]}.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np

ROWS, CALLS, WARM_UP = 512, 12, 4
x = np.random.default_rng(0).normal(size=(ROWS, 16)).astype(np.float32)
y = x[:, :1]


def new_model() -> keras.Model:
    model = keras.Sequential(
        [keras.Input((16,)), keras.layers.Dense(8), keras.layers.Dense(1)], name="small"
    )
    model.compile("adam", "mse")
    return model


def median_times(call: Callable[[], object], calls: int, warm_up: int) -> tuple[float, float]:
    """Medians of a call's CPU time and of its wall-clock time."""
    cpu, wall = [], []
    for number in range(warm_up + calls):
        before = time.process_time(), time.perf_counter()
        call()
        if number >= warm_up:
            cpu.append(time.process_time() - before[0])
            wall.append(time.perf_counter() - before[1])
    return statistics.median(cpu), statistics.median(wall)


def use_new_model() -> None:
    model = new_model()
    model.fit(x, y, verbose=0)
    model.evaluate(x, y, verbose=0)
    model.predict(x[:64], verbose=0)


def main() -> None:
    model = new_model()
    timed: dict[str, Callable[[], object]] = {
        "fit, 512 rows": lambda: model.fit(x, y, verbose=0),
        "evaluate, 512 rows": lambda: model.evaluate(x, y, verbose=0),
        "predict, 64 rows": lambda: model.predict(x[:64], verbose=0),
        "train_on_batch, 32 rows": lambda: model.train_on_batch(x[:32], y[:32]),
    }
    found = {}
    for name, call in timed.items():
        short = name.startswith("train")
        found[name] = median_times(call, CALLS * (20 if short else 1), WARM_UP)
    found["a new model, all three"] = median_times(use_new_model, CALLS // 4, 1)
    rank = os.environ.get("OMPI_COMM_WORLD_RANK", "0")
    Path(sys.argv[1]).with_suffix(f".{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
