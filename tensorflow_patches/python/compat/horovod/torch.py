"""horovod.torch is not provided."""

raise ImportError(
    "horovod.torch is not available: this horovod is part of tensorflow.mpi, for TensorFlow and "
    "Keras only; for anything else install Horovod, and set TF_MPI_COMPAT=0"
)
