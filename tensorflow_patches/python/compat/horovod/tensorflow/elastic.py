"""horovod.tensorflow.elastic, with a fixed number of ranks."""

from tensorflow.mpi._src.horovod.elastic import (  # noqa: F401
    ObjectState,
    State,
    TensorFlowKerasState,
    TensorFlowState,
    run,
)
