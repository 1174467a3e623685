"""tf.nn.compute_average_loss over a rank's part of a batch: the sum, divided by the whole batch.

A script for tf.distribute adds such losses over its replicas. Ranks average: so where a rank has a
part of a batch, in fit or by TF_MPI_SHARD=dataset, the loss is as many times larger.
"""

from __future__ import annotations

from typing import Any

from tensorflow.mpi import config
from tensorflow.mpi._src.average import scope
from tensorflow.mpi._src.global_batch import batch
from tensorflow.mpi._src.global_batch.kind import Kind
from tensorflow.mpi._src.keras import calls
from tensorflow.mpi._src.runtime import group


def of_part(compute: Any) -> Any:
    def compute_average_loss(
        per_example_loss: Any, sample_weight: Any = None, global_batch_size: Any = None
    ) -> Any:
        loss = compute(per_example_loss, sample_weight, global_batch_size)
        if global_batch_size is None or not _is_part():
            return loss
        import tensorflow as tf

        weight = scope.current_weight()
        times = tf.cast(group.size, loss.dtype)
        if weight is not None:  # by which the gradient is multiplied before it is averaged
            times = tf.math.divide_no_nan(times, tf.cast(weight, loss.dtype))
        scaled = loss * times
        part = batch.current()
        if part is not None:
            part.note(scaled, Kind.MEAN)  # not a sum that would be scaled once more
        return scaled

    return compute_average_loss


def _is_part() -> bool:
    if calls.innermost() is not None:
        return batch.current() is not None
    return bool(config.get("TF_MPI_SHARD") == "dataset")
