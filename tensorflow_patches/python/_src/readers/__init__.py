"""Readers of files, of which each rank reads its part alone."""
