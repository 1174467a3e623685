"""horovod.tensorflow.keras: `import horovod.tensorflow.keras as hvd`."""

from typing import Any

import tensorflow as tf
from horovod.tensorflow import (  # noqa: F401
    Average,
    Compression,
    ProcessSet,
    Sum,
    add_process_set,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from horovod.tensorflow import allgather as _allgather
from horovod.tensorflow import allreduce as _allreduce
from horovod.tensorflow import broadcast as _broadcast
from horovod.tensorflow import broadcast_global_variables as _broadcast_global_variables
from horovod.tensorflow import reducescatter as _reducescatter
from horovod.tensorflow.keras import callbacks, elastic  # noqa: F401
from tensorflow import keras
from tensorflow.mpi._src.horovod import keras_optimizer as _keras_optimizer
from tensorflow.mpi._src.horovod.keras_optimizer import (  # noqa: F401
    DistributedOptimizer,
    PartialDistributedOptimizer,
)


def _now(value: Any) -> Any:
    """In graph mode, what it is when it runs."""
    if tf.executing_eagerly():
        return value
    return tf.compat.v1.keras.backend.get_session().run(value)


def broadcast_global_variables(root_rank: int) -> Any:
    return _now(_broadcast_global_variables(root_rank))


def allreduce(
    value: Any,
    name: str | None = None,
    average: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: Any = None,
    compression: Any = Compression.none,
) -> Any:
    return _now(
        _allreduce(
            tf.constant(value, name=name),
            average=average,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            op=op,
            compression=compression,
        )
    )


def allgather(value: Any, name: str | None = None) -> Any:
    return _now(_allgather(tf.constant(value, name=name)))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    return _now(_broadcast(tf.constant(value, name=name), root_rank))


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    return _now(_reducescatter(tf.constant(value, name=name), op=op))


def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: Any = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """A saved model, whose optimizer becomes a DistributedOptimizer."""
    return _keras_optimizer.load_model(
        keras, filepath, custom_optimizers, custom_objects, compression
    )
