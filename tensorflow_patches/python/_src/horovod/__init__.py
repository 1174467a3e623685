"""What a script that was written for Horovod calls, done by tf.mpi. faces/horovod has its names."""
