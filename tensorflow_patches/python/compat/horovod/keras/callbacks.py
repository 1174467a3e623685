"""horovod.keras.callbacks."""

import keras
from tensorflow.mpi._src.horovod import callbacks

globals().update(callbacks.of(keras, __name__, callbacks.OF_TRAINING))
