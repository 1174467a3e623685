"""What the scripts share: the line by which they tell a test what came out, and arrays in it."""

from __future__ import annotations

import importlib
import json
import os
from typing import Any

import numpy as np


def encode(array: Any) -> list[Any]:
    """[dtype, shape, bytes in hexadecimal]; compare.decode reads it."""
    array = np.ascontiguousarray(array).reshape(np.shape(array))
    return [array.dtype.name, list(array.shape), array.tobytes().hex()]


def result(values: dict[str, Any]) -> None:
    """Prints the line that launch() returns in `results`."""
    print("RESULT " + json.dumps(values), flush=True)


def keras_of(words: list[str]) -> Any:
    """tf_keras if `words` have it, else keras. By its own name: the first script that ranks of
    tests/pool.py run would choose for all what tf.keras is."""
    return importlib.import_module("tf_keras" if "tf_keras" in words else "keras")


def place() -> tuple[int, int]:
    """(rank, size); with TEST_UNSYNCHRONISED, the control, of the launcher: nothing averages."""
    if os.environ.get("TEST_UNSYNCHRONISED"):
        return int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
    import tensorflow as tf

    return tf.mpi.rank(), tf.mpi.size()


def compiles(since: tuple[int, int] = (2, 20)) -> bool:
    """Whether compiled steps are averaged here; before TensorFlow 2.20 they are refused.

    Cases of jit_compile=True are plain functions there, and what looks into XLA is left out.
    """
    import tensorflow as tf

    major, minor = map(int, tf.__version__.split(".")[:2])
    return (major, minor) >= since


def single_threaded_ops(inter_op: int = 1) -> None:
    """The same sums in the same order in every process, whatever the machine."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(inter_op)
