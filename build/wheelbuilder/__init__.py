"""Makes the patched wheel out of an official one: `build/wheel.py` is its command line."""
