"""horovod.ray is not here."""

raise ImportError(
    "horovod.ray: this horovod is tensorflow.mpi's, for TensorFlow and Keras; install "
    "Horovod for anything else (and set TF_MPI_COMPAT=0)"
)
