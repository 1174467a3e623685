"""Commands of other libraries, that start ranks by mpirun."""
