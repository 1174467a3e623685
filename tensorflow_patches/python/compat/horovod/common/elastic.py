"""horovod.common.elastic."""

from tensorflow.mpi._src.horovod.elastic import ObjectState, State, run  # noqa: F401
