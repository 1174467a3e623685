"""Other libraries' launch commands, which start ranks by mpirun."""
