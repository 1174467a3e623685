"""What must stop with an error that says why, or with a warning, and soon."""
