"""horovod.tensorflow.sync_batch_norm."""

from tensorflow.mpi._src.horovod.sync_batch_norm import SyncBatchNormalization  # noqa: F401
