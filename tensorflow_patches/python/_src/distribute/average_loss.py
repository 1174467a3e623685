"""tf.nn.compute_average_loss over a rank's part of a batch: the sum, divided by the whole batch.

A script for tf.distribute adds such losses over its replicas. Ranks average: so where a rank has a
part of a batch by TF_MPI_SHARD=dataset, the loss is as many times larger.
"""

from __future__ import annotations

from typing import Any

from tensorflow.mpi import config
from tensorflow.mpi._src.keras import calls
from tensorflow.mpi._src.runtime import group


def of_part(compute: Any) -> Any:
    def compute_average_loss(
        per_example_loss: Any, sample_weight: Any = None, global_batch_size: Any = None
    ) -> Any:
        loss = compute(per_example_loss, sample_weight, global_batch_size)
        # In fit such a loss is told by its ops: a sum over a part's samples.
        if (
            global_batch_size is None
            or calls.innermost() is not None
            or config.get("TF_MPI_SHARD") != "dataset"
        ):
            return loss
        return loss * group.size

    return compute_average_loss
