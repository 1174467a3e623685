"""What a rank is doing, and what it says of ranks that it waits for."""
