"""horovod.tensorflow.keras: `import horovod.tensorflow.keras as hvd`."""

import functools

from horovod._keras import *  # noqa: F403
from horovod.tensorflow.keras import callbacks, elastic  # noqa: F401
from tensorflow import keras
from tensorflow.mpi._src.horovod import keras_optimizer

load_model = functools.partial(keras_optimizer.load_model, keras)
