"""hvd.SyncBatchNormalization: normalizes by the moments of all ranks' batches."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.average import scope
from tensorflow.mpi._src.horovod import basics
from tensorflow.mpi._src.keras import batch_norm


class SyncBatchNormalization(tf.keras.layers.BatchNormalization):
    """Batch normalization by the moments of all ranks' batches, in which each rank has the same
    weight. Costs one exchange per layer and direction."""

    def __init__(self, fused: Any = False, **kwargs: Any) -> None:
        if fused in (True, None):
            raise ValueError("SyncBatchNormalization does not support fused=True.")
        if not kwargs.get("name"):
            kwargs["name"] = "sync_batch_normalization"
        super().__init__(**kwargs)
        if hasattr(self, "fused"):  # tf_keras's
            self.fused = False

    def _moments(self, *args: Any, **kwargs: Any) -> Any:
        mean, variance = super()._moments(*args, **kwargs)
        if basics.size() == 1:
            return mean, variance
        with scope.for_the_script():
            own = batch_norm.Moments(mean, variance, tf.constant(1.0, tf.float64))
            return batch_norm.combine(own, f"hvd {self.name}")[:2]
