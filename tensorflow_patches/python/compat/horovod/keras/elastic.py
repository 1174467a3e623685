"""horovod.keras.elastic, with a fixed number of ranks."""

import keras
from tensorflow.mpi._src.horovod import callbacks
from tensorflow.mpi._src.horovod.elastic import TensorFlowKerasState as KerasState  # noqa: F401
from tensorflow.mpi._src.horovod.elastic import run  # noqa: F401

globals().update(callbacks.make(keras, __name__, callbacks.OF_ELASTIC))
