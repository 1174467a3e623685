"""The table of what is replaced in Python's library, NumPy, TensorFlow, Keras and tf_keras."""
