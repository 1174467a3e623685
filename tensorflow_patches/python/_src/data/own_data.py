"""Data that belongs to one rank and is not divided: declared by the script, or made by readers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.mpi import config
from tensorflow.mpi._src.lifecycle import engine
from tensorflow.mpi._src.messaging import control_plane

_MARK = "_tf_mpi_own_part"
WAY_OUT = (
    "If the script gives each rank its own part, call tf.mpi.own_data() before that, or set "
    "TF_MPI_SHARD=off"
)


def declare() -> None:
    """See tensorflow.mpi.own_data."""
    if config.get("TF_MPI_SHARD") == "off":
        return
    # All ranks must call it, or the others would divide the data.
    control_plane.headers("tf.mpi.own_data()", None)
    config.leave_data_to_script(files=False)
    engine.leave_data_to_script()


def of_arrays(arrays: Any) -> Any:
    """A tf.data.Dataset of this rank's rows."""
    dataset = tf.data.Dataset.from_tensor_slices(arrays)
    setattr(dataset, _MARK, True)
    dataset._tf_mpi_part = True  # for loops over it: see dataset_shard.is_part
    return dataset


def is_own(dataset: Any) -> bool:
    """Whether `dataset` is from of_arrays, or made from such a dataset."""
    if getattr(dataset, _MARK, False):
        return True
    return hasattr(dataset, "_inputs") and any(map(is_own, dataset._inputs()))
