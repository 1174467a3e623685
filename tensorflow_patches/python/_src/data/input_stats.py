"""TF_MPI_STATS=1: how many samples a rank's input pipelines produce, and how many it uses.

A pipeline adds to a variable once per batch, and runs Python only for the row of waits in
TF_MPI_TIMELINE. Without either setting nothing is added to pipelines. A sample counts as produced
where its batch is divided among the ranks, or on the rank that produces it for others; a sample
that is read ahead and dropped is produced but not used.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.mpi import config
from tensorflow.mpi._src.messaging import collectives
from tensorflow.mpi._src.runtime import c_api, group

_COUNTED = "_tf_mpi_counted"  # attribute of a dataset whose samples are counted as produced
_LABEL = "input of each rank"
_bytes_before = 0  # what this process had read when the first pipeline was counted


def on() -> bool:
    return _are_printed() or bool(config.get("TF_MPI_TIMELINE"))


def _are_printed() -> bool:
    return bool(config.get("TF_MPI_STATS") == "1")


def add(made: Any = 0, used: Any = 0, microseconds: Any = 0) -> None:
    """Adds samples produced, samples used and the wait; in a tf.data function, for each batch."""
    numbers = [tf.cast(number, tf.int64) for number in (made, used, microseconds)]
    tf.raw_ops.AssignAddVariableOp(resource=_counter(), value=tf.stack(numbers))


def show_wait(microseconds: Any) -> None:
    """Adds the wait for a batch, which ends now, to the timeline."""
    if config.get("TF_MPI_TIMELINE"):
        tf.numpy_function(lambda waited: c_api.record_input(1e-6 * waited), [microseconds], [])


def is_counted(dataset: Any) -> bool:
    """Whether `dataset`, or one before it, already counts its samples as produced."""
    return hasattr(dataset, _COUNTED) or any(map(is_counted, dataset._inputs()))


def mark_counted(dataset: Any) -> Any:
    """Declares that samples are counted already, or that another rank produces them."""
    setattr(dataset, _COUNTED, True)
    return dataset


@functools.cache
def _counter() -> Any:
    """The handle of a variable: samples produced, samples used, microseconds waited for them."""
    global _bytes_before
    _bytes_before = _bytes_read()
    with tf.init_scope(), tf.device("CPU"):
        handle = tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[3], shared_name="tf_mpi_input")
        tf.raw_ops.AssignVariableOp(resource=handle, value=tf.zeros([3], tf.int64))
    return handle


def _bytes_read() -> int:
    """The bytes that this process has read so far, of all files."""
    with open("/proc/self/io") as file:
        return int(file.readline().removeprefix("rchar:"))


def gather() -> list[dict[str, Any]]:
    """The statistics by rank, at the end of the script, before the rank joins; [] without input.

    First waits in a barrier, because ranks that end later may still train: averages of a custom
    loop do without a rank in a barrier. Ranks without TF_MPI_STATS join, and are left out.
    """
    if not _are_printed():
        return []
    counts, read = np.zeros(3, np.int64), 0
    if _counter.cache_info().currsize:
        counts = tf.raw_ops.ReadVariableOp(resource=_counter(), dtype=tf.int64).numpy()
        read = _bytes_read() - _bytes_before
    rows = np.array([[group.rank, *counts, read]], np.int64)
    try:
        collectives.run("barrier", np.empty(0, np.uint8), _LABEL, of_script=True)
        rows = collectives.run("allgather", rows, _LABEL, of_script=True)
    except tf.errors.OpError:  # another rank has failed; that is reported elsewhere
        pass
    if not rows[:, 1:].any():
        return []
    names = ("rank", "made", "used", "microseconds", "read")
    return [dict(zip(names, row)) for row in rows.tolist()]
