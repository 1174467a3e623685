"""Measures training speed the way users run training: `python -m benchmarks --help`."""
