"""Horovod's API, implemented with tf.mpi. The public names are in compat/horovod."""
