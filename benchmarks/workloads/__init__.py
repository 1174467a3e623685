"""Ordinary TensorFlow scripts; v1_loop, keras_fit and function_loop each run every workload.

They know their rank, to generate their own data, but not how they were started.
"""
