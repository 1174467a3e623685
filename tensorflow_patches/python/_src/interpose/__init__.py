"""Replaces attributes of TensorFlow, Keras and Python without changing files."""
