"""Exchanges between ranks that Python makes: collectives on arrays, and in graphs."""
