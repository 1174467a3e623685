"""The cost of communication: the report at the end, the doctor's checks, and the benchmark."""
