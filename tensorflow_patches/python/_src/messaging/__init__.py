"""Exchanges between ranks that start in Python: collectives on arrays, and in graphs."""
