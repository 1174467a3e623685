"""Datasets of a rank's own rows, which nobody splits again."""

from __future__ import annotations

from typing import Any

_MARK = "_tf_mpi_own_part"


def of_arrays(arrays: Any) -> Any:
    """A tf.data.Dataset of this rank's rows."""
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices(arrays)
    setattr(dataset, _MARK, True)
    dataset._tf_mpi_part = True  # see dataset_shard.py
    return dataset


def is_own(dataset: Any) -> bool:
    """Whether `dataset` is made of such ones."""
    if getattr(dataset, _MARK, False):
        return True
    sources = dataset._inputs() if hasattr(dataset, "_inputs") else []
    return bool(sources) and any(map(is_own, sources))
