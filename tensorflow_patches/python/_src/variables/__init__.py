"""Variables: their common names on all ranks, the initial broadcast, and the divergence check."""
