"""horovod.tensorflow.compression."""

from tensorflow.mpi._src.horovod.reductions import (  # noqa: F401
    Compression,
    Compressor,
    FP16Compressor,
    NoneCompressor,
)
