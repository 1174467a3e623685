"""horovod.mxnet is not here."""

raise ImportError(
    "horovod.mxnet: this horovod is tensorflow.mpi's, for TensorFlow and Keras; install "
    "Horovod for anything else (and set TF_MPI_COMPAT=0)"
)
