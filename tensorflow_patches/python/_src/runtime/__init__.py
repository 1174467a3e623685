"""The engine as Python sees it, and the hooks that TensorFlow's patched files call."""
