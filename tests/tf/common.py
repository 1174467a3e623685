"""Helpers for scripts: the line with a script's results for its test, and arrays in it."""

from __future__ import annotations

import importlib
import json
import os
from typing import Any

import numpy as np


def encode(array: Any) -> list[Any]:
    """[dtype, shape, bytes in hexadecimal], which compare.decode reads."""
    array = np.ascontiguousarray(array).reshape(np.shape(array))
    return [array.dtype.name, list(array.shape), array.tobytes().hex()]


def result(values: dict[str, Any]) -> None:
    """Prints the line that launch() returns in `results`."""
    print("RESULT " + json.dumps(values), flush=True)


def keras_of(words: list[str]) -> Any:
    """tf_keras if `words` contain it, else keras. Imported by name, because the first script in
    pooled ranks (tests/pool.py) would otherwise decide for all of them what tf.keras is."""
    return importlib.import_module("tf_keras" if "tf_keras" in words else "keras")


def place() -> tuple[int, int]:
    """(rank, size); with TEST_UNSYNCHRONISED, the control, from the launcher: nothing averages."""
    if os.environ.get("TEST_UNSYNCHRONISED"):
        return int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
    import tensorflow as tf

    return tf.mpi.rank(), tf.mpi.size()


def compiles(since: tuple[int, int] = (2, 20)) -> bool:
    """Whether compiled steps are averaged; with TensorFlow before 2.20 they are refused.

    Cases with jit_compile=True are then plain functions, and checks inside XLA are omitted.
    """
    import tensorflow as tf

    major, minor = map(int, tf.__version__.split(".")[:2])
    return (major, minor) >= since


def single_threaded_ops(inter_op: int = 1) -> None:
    """The same sums in the same order in every process, on any machine."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(inter_op)
