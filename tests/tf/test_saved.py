"""What a training run under two ranks writes, stock TensorFlow loads and runs."""
