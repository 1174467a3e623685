"""tf.distribute's strategies under MPI: the ranks take the place of devices and workers.

A rank has one device. Each synchronous strategy becomes a strategy of one device (one_rank.py): the
script's objects keep their classes, its global batch remains the global batch, and data is split
among the ranks as without a strategy. The number of replicas, by which a script multiplies its
batch size, stays as in one process: the number of the strategy's devices, or of the workers in
TF_CONFIG. Parameter-server strategies are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorflow.mpi._src.runtime import group, log


def of_one_rank(
    count: Callable[..., tuple[int, Any, Sequence[Any] | None]], original: Any
) -> Callable[..., None]:
    """Replaces a strategy's __init__ on a rank.

    count: one of the functions `replicas_of_...`; called with the strategy's arguments. It returns
      the number of replicas in one process, the cluster resolver or None, and the devices that the
      arguments name or None.
    """

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        from tensorflow.mpi._src.distribute import one_rank

        replicas, resolver, named = count(*args, **kwargs)
        one_rank.initialize(self, replicas, resolver, device(named, _sees_gpu))

    return init


def device(named: Sequence[Any] | None, sees_gpu: Callable[[], bool]) -> str:
    """A rank's one device: its GPU if it has one and the strategy names GPUs or no devices.

    That is GPU 0, because TensorFlow sees only the GPU that gpu/gpus.py has chosen.
    """
    wanted = named is None or "GPU" in str(getattr(named[0], "name", named[0])).upper()
    return "/gpu:0" if wanted and sees_gpu() else "/cpu:0"


def _sees_gpu() -> bool:
    from tensorflow.python.framework import config

    # Physical devices first: listing logical ones creates them, after which they are fixed.
    return bool(config.list_physical_devices("GPU") and config.list_logical_devices("GPU"))


def replicas_of_one_device(device: Any) -> tuple[int, Any, Sequence[Any]]:
    """For OneDeviceStrategy(device)."""
    return 1, None, [device]


def replicas_of_devices(
    devices: Any = None, *_: Any, compute_devices: Any = None, **__: Any
) -> Any:
    """For MirroredStrategy(devices, ...) and CentralStorageStrategy(compute_devices, ...)."""
    from tensorflow.python.distribute import mirrored_strategy

    named = devices or compute_devices or mirrored_strategy.all_local_devices()
    if len(named) > 1:
        log.once(
            f"the strategy has {len(named)} devices, but each rank computes its part of a batch on "
            "one; to use more, start one rank per core or GPU"
        )
    return len(named), None, named


def replicas_of_workers(
    *args: Any, cluster_resolver: Any = None, **_: Any
) -> tuple[int, Any, None]:
    """For MultiWorkerMirroredStrategy(cluster_resolver, ...), or v1's (communication, resolver)."""
    from tensorflow.python.distribute.cluster_resolver import cluster_resolver as base
    from tensorflow.python.distribute.cluster_resolver import tfconfig_cluster_resolver

    resolver = cluster_resolver
    for argument in args:
        if isinstance(argument, base.ClusterResolver):
            resolver = argument
    if resolver is None:
        resolver = tfconfig_cluster_resolver.TFConfigClusterResolver()
    jobs = resolver.cluster_spec().as_dict()
    if resolver.task_type in ("ps", "evaluator"):
        raise NotImplementedError(
            f"rank {group.rank} of {group.size} is a '{resolver.task_type}' according to its "
            "TF_CONFIG, but all MPI ranks are workers. Unset TF_CONFIG and start workers only, or "
            "set TF_MPI_ENABLE=0"
        )
    count = sum(len(jobs.get(job, ())) for job in ("chief", "worker")) or 1
    if count not in (1, group.size):
        log.once(
            f"TF_CONFIG names {count} workers, but {group.size} ranks run: they split the global "
            f"batch of {count} workers"
        )
    return count, resolver, None


def refused(original: Any) -> Any:
    """Replaces the __init__ of a parameter-server strategy."""

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            f"tf.distribute's {type(self).__name__} needs parameter servers, but here "
            f"{group.size} ranks train one model synchronously, and need no strategy. Use "
            "tf.distribute.MirroredStrategy() or none, or set TF_MPI_ENABLE=0"
        )

    return init
