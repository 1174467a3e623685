"""What a script that was written for Horovod calls, done by tf.mpi. compat/horovod has
the names."""
