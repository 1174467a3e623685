"""horovod.tensorflow.mpi_ops."""

from typing import Any

import numpy as np
import tensorflow as tf
from horovod.common.util import num_rank_is_power_2 as check_num_rank_power_of_2  # noqa: F401
from horovod.tensorflow.util import _executing_eagerly  # noqa: F401
from tensorflow.mpi._src.horovod import basics as _basics
from tensorflow.mpi._src.horovod import collectives as _collectives
from tensorflow.mpi._src.horovod import process_sets as _process_sets
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
from tensorflow.mpi._src.horovod.collectives import allreduce as _allreduce  # noqa: F401
from tensorflow.mpi._src.horovod.collectives import reducescatter as _reducescatter  # noqa: F401
from tensorflow.mpi._src.horovod.objects import broadcast_  # noqa: F401
from tensorflow.mpi._src.horovod.process_sets import (  # noqa: F401
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from tensorflow.mpi._src.horovod.reductions import grouped_allgather  # noqa: F401

handle_average_backwards_compatibility = _collectives.chosen_op


def _when_run(function: Any, name: str | None) -> Any:
    """An operation that calls `function` when it runs, and returns its result, a number."""
    result = tf.numpy_function(lambda: np.int32(function()), [], tf.int32, stateful=True, name=name)
    return tf.ensure_shape(result, [])


def rank_op(name: str | None = None) -> Any:
    return _when_run(_basics.rank, name)


def local_rank_op(name: str | None = None) -> Any:
    return _when_run(_basics.local_rank, name)


def local_size_op(name: str | None = None) -> Any:
    return _when_run(_basics.local_size, name)


def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    return _when_run(lambda: _process_sets.by_id(process_set_id).size(), name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """1 or 0; -1 before init, -2 for an unknown process set."""

    def included() -> int:
        if not _basics.is_initialized():
            return -1
        try:
            return int(bool(_process_sets.by_id(process_set_id).included()))
        except KeyError:
            return -2

    return _when_run(included, name)
