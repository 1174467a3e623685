"""tf.distribute's strategies under MPI ranks."""
