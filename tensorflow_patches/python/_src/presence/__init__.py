"""What a rank is doing, and what it reports about the ranks that it waits for."""
