"""Ordinary TensorFlow scripts, each with every workload: v1_loop, keras_fit, function_loop.

They know their rank, to draw their own data, and nothing else of how they were started.
"""
