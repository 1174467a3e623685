"""tf.distribute's strategies on ranks."""
