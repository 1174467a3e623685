"""The implementation of tensorflow.mpi. Scripts use the modules above it."""
