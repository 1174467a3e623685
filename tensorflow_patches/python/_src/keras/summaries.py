"""Warns that tf.summary in a train_step or test_step covers only rank 0's part of the batch."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.average import scope
from tensorflow.mpi._src.global_batch import batch, kinds
from tensorflow.mpi._src.runtime import log


def noting_part(write: Any) -> Any:
    """Wraps the function that tf.summary.scalar, image, ... call. A value that they pass as a
    function, to be computed later, is not checked."""

    def saying(tag: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if not callable(tensor) and scope.is_on_part() and _is_of_part(tensor):
            _say(tag)
        return write(tag, tensor, *args, **kwargs)

    return saying


def _is_of_part(value: Any) -> bool:
    part = batch.current()
    if (
        part is None
        or part.findings is not None
        or part.is_suspended
        or not isinstance(value, tf.Tensor)
    ):
        return False
    if id(value) in part.results:
        return True
    return hasattr(value, "op") and part.kind(value) is not kinds.Kind.CONST  # or unknown


def _say(tag: Any) -> None:
    log.once(
        f"tf.summary '{tag}' in a step covers only rank 0's part of each batch. Write it in a "
        "callback, whose logs cover all ranks, or compute it from tf.mpi.gather_batch's samples",
        key="summary of a part",
    )
