"""Keras 3, and what it has in common with tf_keras."""
