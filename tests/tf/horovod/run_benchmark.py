"""Runs tf_cnn_benchmarks unmodified on generated images: run_benchmark.py SCRIPT OPTIONS

The images come in order, instead of the script's shuffle; each rank takes every SIZE-th.
"""

from __future__ import annotations

import functools
import os
import pickle
import runpy
import sys
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf

ROWS, FILES = 1000, 5
train: Any = tf.compat.v1.train


def in_order(
    tensors: Any, batch_size: int, capacity: int, min_after_dequeue: int, **more: Any
) -> Any:
    """Replaces shuffle_batch."""
    return train.batch(tensors, batch_size, capacity=2 * batch_size, **more)


def write_images(folder: str, rank: int, size: int) -> None:
    """Writes the format of CIFAR-10's files."""
    draw = np.random.RandomState(0)
    labels = draw.randint(0, 10, ROWS)
    images = draw.randint(0, 100, (ROWS, 3072)) + 15 * labels[:, None]
    mine = np.array_split(np.arange(rank, ROWS, size), FILES)
    for number, rows in enumerate(mine, start=1):
        with open(f"{folder}/data_batch_{number}", "wb") as file:
            values = {b"data": images[rows].astype(np.uint8), b"labels": labels[rows].tolist()}
            pickle.dump(values, file)


script, sys.argv = sys.argv[1], sys.argv[1:]
sys.path.insert(0, os.path.dirname(script))
train.slice_input_producer = functools.partial(train.slice_input_producer, shuffle=False)
train.shuffle_batch = in_order
with tempfile.TemporaryDirectory() as made:
    write_images(
        made,
        int(os.environ.get("OMPI_COMM_WORLD_RANK", 0)),
        int(os.environ.get("OMPI_COMM_WORLD_SIZE", 1)),
    )
    sys.argv.append(f"--data_dir={made}")
    runpy.run_path(script, run_name="__main__")
