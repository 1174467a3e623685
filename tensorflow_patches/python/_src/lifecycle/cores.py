"""The cores of a node, and how its ranks use them.

TensorFlow starts one thread for each core that it may use. If ranks are not bound to cores (mpirun
--bind-to none or --oversubscribe, MPICH's mpiexec, srun), each would start one for every core of
the node; `share` prevents that. Open MPI 5 binds each rank to one core, even if there are more,
which surprises users who have run the script without it; `idle` tells them.
"""

from __future__ import annotations

import collections
import os
from collections.abc import Iterable

from tensorflow.mpi import config
from tensorflow.mpi._src.presence import watch
from tensorflow.mpi._src.runtime import c_api

_OPEN_MPI = "Open MPI's mpirun"


def share(launcher: config.Launcher) -> None:
    """Limits TensorFlow's threads to this rank's share of the node's cores, if it may use more.
    Call before TensorFlow creates threads."""
    share_of_rank = max(1, c_api.node_cores() // _ranks_here(launcher))
    if share_of_rank < len(os.sched_getaffinity(0)):
        config.limit_threads(share_of_rank)


def idle(launcher: config.Launcher) -> str | None:
    """Advice for the user if mpirun has bound this node's ranks to fewer cores than available."""
    process = watch.started_by()
    if process is None or launcher.name != _OPEN_MPI:
        return None
    ranks, own = _ranks_here(launcher), _cores(os.sched_getaffinity(0)).total()
    packages = _cores(process.cores())
    cores = min(packages.total(), c_api.quota_cores())
    each = cores // ranks
    if each <= own:
        return None
    # mpirun does not bind a rank to cores of two packages.
    fits = sum(count // each for count in packages.values()) >= ranks
    return (
        f"each of the {ranks} ranks on this node is bound to {own} of its {cores} cores; to use "
        f"all cores, pass mpirun {f'--map-by slot:PE={each}' if fits else '--bind-to none'}"
    )


def _ranks_here(launcher: config.Launcher) -> int:
    # The launcher may not give this number; with TF_MPI_TOPOLOGY, topology() gives a smaller one.
    return max(launcher.local_size, c_api.topology()[3])


def _cores(processors: Iterable[int]) -> collections.Counter[str]:
    """The number of cores to which these processors (hardware threads) belong, by package."""
    found = {
        (_topology_value(number, "physical_package_id"), _topology_value(number, "core_id"))
        for number in processors
    }
    return collections.Counter(package for package, _ in found)


def _topology_value(processor: int, what: str) -> str:
    try:
        with open(
            f"/sys/devices/system/cpu/cpu{processor}/topology/{what}", encoding="ascii"
        ) as file:
            return file.read().strip()
    except OSError:
        return "" if what == "physical_package_id" else str(processor)
