"""The table of replaced attributes of Python, NumPy, h5py, TensorFlow, Keras and tf_keras."""
