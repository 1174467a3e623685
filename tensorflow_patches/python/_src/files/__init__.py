"""One set of files: rank 0's."""
