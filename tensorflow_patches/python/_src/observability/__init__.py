"""What communication cost: the report at the end, and the benchmark."""
