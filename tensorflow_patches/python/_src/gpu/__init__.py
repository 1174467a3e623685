"""Assigns GPUs to ranks."""
