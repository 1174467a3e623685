"""horovod.spark is not here."""

raise ImportError(
    "horovod.spark: this horovod is tensorflow.mpi's, for TensorFlow and Keras; install "
    "Horovod for anything else (and set TF_MPI_COMPAT=0)"
)
