"""tf.mpi: the collectives on every kind of value, and the command line."""
