"""horovod.tensorflow.data is not here."""

raise ImportError(
    "horovod.tensorflow.data, tf.data's service on Horovod's launcher, is not in tensorflow.mpi's "
    "horovod; tf.data.experimental.service is TensorFlow's own"
)
