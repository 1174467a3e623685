"""Builds the patched wheel from an official one; `build/wheel.py` is the command line."""
