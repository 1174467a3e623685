"""tf.distribute's strategies on ranks: the ranks are what a strategy would have distributed to.

A rank has one device. Each strategy that keeps replicas in step becomes one of one device
(one_rank.py): the script's objects stay of their classes, its global batch the global batch, and
what is split is split among the ranks, as without a strategy. The number of replicas by which a
script multiplies its batch stays what it is in one process: of the devices that it names, or of the
workers of TF_CONFIG. Strategies with servers of parameters are refused.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from tensorflow.mpi._src.runtime import group, log


def of_one_rank(
    count: Callable[..., tuple[int, Any, Sequence[Any] | None]], original: Any
) -> Callable[..., None]:
    """A strategy's __init__, for one rank.

    count: called with the arguments of a class; returns how many replicas it has in one process,
      the cluster resolver, if it has one, and the devices that it names, if it names some.
    """

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        replicas, resolver, named = count(*args, **kwargs)
        one_rank = importlib.import_module("tensorflow.mpi._src.distribute.one_rank")
        one_rank.initialize(self, replicas, resolver, device(named, _sees_gpu))

    return init


def device(named: Sequence[Any] | None, sees_gpu: Callable[[], bool]) -> str:
    """A rank's one device: its GPU, where the strategy names GPUs or none and it has one.

    Which GPU that is, gpu/gpus.py has chosen: it is the first that this process sees.
    """
    wanted = named is None or "GPU" in str(getattr(named[0], "name", named[0])).upper()
    return "/gpu:0" if wanted and sees_gpu() else "/cpu:0"


def _sees_gpu() -> bool:
    from tensorflow.python.framework import config

    # Physical ones first: to ask for logical ones makes them, and ends the time to configure them.
    return bool(config.list_physical_devices("GPU") and config.list_logical_devices("GPU"))


def one_device(device: Any) -> tuple[int, Any, Sequence[Any]]:
    return 1, None, [device]


def devices(devices: Any = None, *_: Any, compute_devices: Any = None, **__: Any) -> Any:
    from tensorflow.python.distribute import mirrored_strategy

    named = devices or compute_devices or mirrored_strategy.all_local_devices()
    if len(named) > 1:
        log.once(
            f"a strategy of {len(named)} devices: each rank computes its part of a batch on one; "
            "start a rank per core or GPU instead"
        )
    return len(named), None, named


def workers(*args: Any, cluster_resolver: Any = None, **_: Any) -> tuple[int, Any, None]:
    """MultiWorkerMirroredStrategy(cluster_resolver, ...), or v1's (communication, resolver)."""
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
            f"rank {group.rank} of {group.size} is a '{resolver.task_type}' by its TF_CONFIG: the "
            "ranks of MPI are all workers. Leave TF_CONFIG unset and start workers only, or set "
            "TF_MPI_ENABLE=0"
        )
    workers = sum(len(jobs.get(job, ())) for job in ("chief", "worker")) or 1
    if workers not in (1, group.size):
        log.once(
            f"TF_CONFIG names {workers} workers, and {group.size} ranks run: they split the global "
            f"batch of {workers} workers"
        )
    return workers, resolver, None


def refused(original: Any) -> Any:
    """Of a strategy with servers of parameters."""

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            f"tf.distribute's {type(self).__name__} has servers that hold the parameters; here "
            f"{group.size} ranks train one model in step, and need no strategy. Use "
            "tf.distribute.MirroredStrategy() or none, or set TF_MPI_ENABLE=0"
        )

    return init
