"""horovod.runner.common is not here."""

raise ImportError(
    "horovod.runner.common, of Horovod's launcher, is not in tensorflow.mpi's horovod; start ranks "
    "with mpirun or horovodrun"
)
