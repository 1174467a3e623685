"""Makes the ranks write one set of files: rank 0's."""
