"""tf_keras: what it does otherwise than Keras 3."""
