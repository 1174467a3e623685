"""Keras 3, and what Keras 3 and tf_keras have in common."""
