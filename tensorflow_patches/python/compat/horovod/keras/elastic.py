"""horovod.keras.elastic, at a fixed number of ranks."""

import keras
from tensorflow.mpi._src.horovod import callbacks as _callbacks
from tensorflow.mpi._src.horovod.elastic import TensorFlowKerasState as KerasState  # noqa: F401
from tensorflow.mpi._src.horovod.elastic import run  # noqa: F401

_made = _callbacks.of(keras, __name__)
CommitStateCallback = _made.CommitStateCallback
UpdateBatchStateCallback = _made.UpdateBatchStateCallback
UpdateEpochStateCallback = _made.UpdateEpochStateCallback
