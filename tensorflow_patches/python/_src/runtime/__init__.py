"""This process as a rank: its library, its group, its hooks in TensorFlow, its log lines."""
