"""horovod.tensorflow: `import horovod.tensorflow as hvd`."""

from typing import Any

import tensorflow as tf
from horovod.tensorflow import elastic, functions, mpi_ops, util  # noqa: F401
from horovod.tensorflow.util import _executing_eagerly  # noqa: F401
from tensorflow.mpi._src.horovod import gradients as _gradients
from tensorflow.mpi._src.horovod import keras_optimizer as _keras_optimizer
from tensorflow.mpi._src.horovod import v1_optimizer as _v1_optimizer
from tensorflow.mpi._src.horovod.basics import (  # noqa: F401
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
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
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from tensorflow.mpi._src.horovod.collectives import (  # noqa: F401
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    alltoall,
    barrier,
    broadcast,
    join,
)
from tensorflow.mpi._src.horovod.objects import (  # noqa: F401
    allgather_object,
    broadcast_,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from tensorflow.mpi._src.horovod.process_sets import (  # noqa: F401
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from tensorflow.mpi._src.horovod.reductions import (  # noqa: F401
    Compression,
    allreduce,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from tensorflow.mpi._src.horovod.tape import (  # noqa: F401
    DistributedGradientTape,
    PartialDistributedGradientTape,
)
from tensorflow.mpi._src.horovod.v1_optimizer import BroadcastGlobalVariablesHook  # noqa: F401

local_rank_op = mpi_ops.local_rank_op
local_size_op = mpi_ops.local_size_op
process_set_included_op = mpi_ops.process_set_included_op
rank_op = mpi_ops.rank_op
size_op = mpi_ops.size_op
check_num_rank_power_of_2 = mpi_ops.check_num_rank_power_of_2
handle_average_backwards_compatibility = mpi_ops.handle_average_backwards_compatibility


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """An optimizer as `optimizer`, of compat.v1 or of Keras, whose gradients are reduced first."""
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    _gradients.check_adasum(op, process_set, average_aggregated_gradients)
    _gradients.check_groups(num_groups, groups)
    settings = {
        "device_dense": device_dense,
        "device_sparse": device_sparse,
        "compression": compression,
        "sparse_as_dense": sparse_as_dense,
        "op": op,
        "gradient_predivide_factor": gradient_predivide_factor,
        "process_set": process_set,
        "scale_local_gradients": scale_local_gradients,
    }
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return _v1_optimizer.distributed(
            optimizer,
            name,
            use_locking,
            passes=backward_passes_per_step,
            average_aggregated=average_aggregated_gradients,
            **settings,
        )
    if op == Adasum:
        raise ValueError("op == Adasum is not supported yet with Keras")
    return _keras_optimizer.DistributedOptimizer(
        optimizer,
        name,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        **settings,
    )


def __getattr__(name: str) -> Any:
    if name == "SyncBatchNormalization":  # loads Keras
        from tensorflow.mpi._src.horovod import sync_batch_norm

        return sync_batch_norm.SyncBatchNormalization
    raise AttributeError(
        f"horovod.tensorflow of tensorflow.mpi has no {name}: docs/horovod.md lists what it has"
    )
