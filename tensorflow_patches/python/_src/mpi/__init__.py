"""Chooses the MPI library of this rank, and our transport for it."""
