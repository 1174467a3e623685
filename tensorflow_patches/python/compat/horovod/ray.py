"""horovod.ray is not provided."""

raise ImportError(
    "horovod.ray is not available: this horovod is part of tensorflow.mpi, for TensorFlow and "
    "Keras only; for anything else install Horovod, and set TF_MPI_COMPAT=0"
)
