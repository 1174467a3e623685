"""horovod.runner.common is not provided."""

raise ImportError(
    "horovod.runner.common belongs to Horovod's launcher, which tensorflow.mpi's horovod does not "
    "have; start ranks with mpirun or horovodrun"
)
