"""horovod.tensorflow.data is not provided."""

raise ImportError(
    "horovod.tensorflow.data, the tf.data service on Horovod's launcher, is not in "
    "tensorflow.mpi's horovod; use TensorFlow's own tf.data.experimental.service"
)
