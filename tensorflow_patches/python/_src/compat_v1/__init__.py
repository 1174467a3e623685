"""tf.compat.v1: optimizers and Sessions."""
