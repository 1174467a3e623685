"""horovod.keras: `import horovod.keras as hvd`."""

import functools

import keras
from horovod._keras import *  # noqa: F403
from horovod.keras import callbacks, elastic  # noqa: F401
from tensorflow.mpi._src.horovod import keras_optimizer

load_model = functools.partial(keras_optimizer.load_model, keras)
