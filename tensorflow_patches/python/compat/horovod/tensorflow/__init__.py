"""horovod.tensorflow: `import horovod.tensorflow as hvd`."""

from typing import Any

from horovod.tensorflow import compression, elastic, functions, mpi_ops, util  # noqa: F401
from horovod.tensorflow.functions import *  # noqa: F403
from horovod.tensorflow.mpi_ops import *  # noqa: F403
from horovod.tensorflow.mpi_ops import _allreduce  # noqa: F401
from horovod.tensorflow.util import _executing_eagerly  # noqa: F401
from tensorflow.mpi._src.horovod.gradients import _make_allreduce_grads_fn  # noqa: F401
from tensorflow.mpi._src.horovod.objects import broadcast_global_variables  # noqa: F401
from tensorflow.mpi._src.horovod.reductions import (  # noqa: F401
    Compression,
    allreduce,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from tensorflow.mpi._src.horovod.tape import (  # noqa: F401
    DistributedGradientTape,
    PartialDistributedGradientTape,
)
from tensorflow.mpi._src.horovod.v1_optimizer import (  # noqa: F401
    BroadcastGlobalVariablesHook,
    DistributedOptimizer,
)
from tensorflow.mpi._src.horovod.v1_optimizer import Distributed as _DistributedOptimizer  # noqa: F401
from tensorflow.mpi._src.horovod.v1_optimizer import v1 as _v1
from tensorflow.mpi._src.runtime import c_api

_LegacyOptimizer = _v1.train.Optimizer

c_api.register_ops()  # with averaging off, too: a graph saved by ranks can then be loaded


def __getattr__(name: str) -> Any:
    if name == "SyncBatchNormalization":  # loads Keras
        from tensorflow.mpi._src.horovod import sync_batch_norm

        return sync_batch_norm.SyncBatchNormalization
    raise AttributeError(
        f"tensorflow.mpi's horovod.tensorflow has no {name}; docs/horovod.md lists its functions"
    )
