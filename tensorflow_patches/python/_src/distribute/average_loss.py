"""tf.nn.compute_average_loss on a rank's part of a batch.

The function divides the sum of a replica's losses by the global batch size; tf.distribute adds the
results over the replicas. Ranks average instead. So if TF_MPI_SHARD=dataset has divided a dataset,
the loss is multiplied by the number of ranks, and counts as a mean. After tf.mpi.shard(dataset) the
loss is left as it is, and global_batch/loop_losses.py warns of the sum, except in eager code.
"""

from __future__ import annotations

from typing import Any

from tensorflow.mpi import config
from tensorflow.mpi._src.average import scope
from tensorflow.mpi._src.global_batch import loop_losses
from tensorflow.mpi._src.keras import calls
from tensorflow.mpi._src.runtime import group


def of_part(compute: Any) -> Any:
    """Wraps tf.nn.compute_average_loss."""

    def compute_average_loss(
        per_example_loss: Any, sample_weight: Any = None, global_batch_size: Any = None
    ) -> Any:
        loss = compute(per_example_loss, sample_weight, global_batch_size)
        # In fit such a loss is recognized by its ops, as a sum over this rank's samples.
        if (
            global_batch_size is None
            or calls.innermost() is not None
            or config.get("TF_MPI_SHARD") != "dataset"
            or not scope.is_divided()
        ):
            return loss
        return loop_losses.as_mean(loss * group.size)

    return compute_average_loss
