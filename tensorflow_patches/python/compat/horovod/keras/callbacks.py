"""horovod.keras.callbacks."""

import keras
from tensorflow.mpi._src.horovod import callbacks

globals().update(callbacks.make(keras, __name__, callbacks.OF_TRAINING))
