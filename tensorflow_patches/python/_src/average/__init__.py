"""Averages of gradients over the ranks, as operations."""
