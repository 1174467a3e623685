"""Keras 3's losses and metrics in steps that have this rank's part of a batch.

What they do is in global_batch/losses.py, global_batch/metrics.py and global_batch/gradients.py.
"""

from __future__ import annotations

from typing import Any

from tensorflow.mpi._src.global_batch import losses


def _mask_of(tensor: Any) -> Any:
    from keras.src import backend

    return backend.get_keras_mask(tensor)


def _put_mask(tensor: Any, mask: Any) -> None:
    from keras.src import backend

    backend.set_keras_mask(tensor, mask)


KERAS = losses.Keras(_mask_of, _put_mask)
