"""horovod.keras.callbacks."""

import keras
from tensorflow.mpi._src.horovod import callbacks as _callbacks

_made = _callbacks.of(keras, __name__)
BroadcastGlobalVariablesCallback = _made.BroadcastGlobalVariablesCallback
MetricAverageCallback = _made.MetricAverageCallback
LearningRateScheduleCallback = _made.LearningRateScheduleCallback
LearningRateWarmupCallback = _made.LearningRateWarmupCallback
BestModelCheckpoint = _made.BestModelCheckpoint
