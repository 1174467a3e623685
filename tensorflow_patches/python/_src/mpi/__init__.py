"""The MPI library that this rank uses, and our transport for it."""
