"""tf_keras, where it differs from Keras 3."""
