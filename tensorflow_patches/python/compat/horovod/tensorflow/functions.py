"""horovod.tensorflow.functions."""

from tensorflow.mpi._src.horovod.objects import (  # noqa: F401
    allgather_object,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
