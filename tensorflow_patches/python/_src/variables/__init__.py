"""Variables: their names on all ranks, and rank 0's values for every rank."""
