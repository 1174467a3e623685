"""Makes the ranks leave the files that one process would leave."""
