"""Random draws: the same on all ranks, but for each rank's own samples."""
