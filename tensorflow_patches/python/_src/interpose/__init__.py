"""How attributes of TensorFlow, Keras and Python are replaced without changing a file."""
