"""What tensorflow.mpi is made of. Scripts use the modules above it."""
