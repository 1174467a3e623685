"""Measurements of training speed, as users would make them: `python -m benchmarks --help`."""
