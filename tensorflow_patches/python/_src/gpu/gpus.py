"""Which GPU a rank uses: its own if there are enough, otherwise one shared with few other ranks.

GPUs that the launcher has hidden stay hidden. A script that chooses a GPU itself
(CUDA_VISIBLE_DEVICES, tf.config.set_visible_devices, visible_device_list) is left alone. This
module does not set CUDA_VISIBLE_DEVICES, because a process cannot access the memory of GPUs that it
does not see.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from tensorflow.mpi import config
from tensorflow.mpi._src.interpose import hooking
from tensorflow.mpi._src.messaging import control_plane
from tensorflow.mpi._src.runtime import c_api, group, log

_chosen: int | None = None  # index among the visible GPUs; None: leave the choice to TensorFlow
_report: list[str] = []  # one line per rank


def install() -> None:
    """Called once, if there are several ranks, when TensorFlow's libraries are loaded."""
    hooking.when_imported("tensorflow.python.eager.context", _assign_gpus)


def choose(seen: Sequence[Sequence[str]]) -> list[int | None]:
    """The GPU of each rank on one machine, as an index into the rank's own list.

    Args:
      seen: the addresses of each rank's visible GPUs, in the rank's order.
    """
    if all(own == seen[0] for own in seen):
        count = len(seen[0])
        order = sorted(range(count), key=seen[0].__getitem__)
        ranks = len(seen)
        return [
            order[rank if ranks <= count else rank * count // ranks] if count else None
            for rank in range(ranks)
        ]
    # The launcher has divided the GPUs. Ranks with the same list use its GPUs in turn.
    chosen: list[int | None] = []
    for rank, own in enumerate(seen):
        same_before = sum(other == own for other in seen[:rank])
        order = sorted(range(len(own)), key=own.__getitem__)
        chosen.append(order[same_before % len(own)] if own else None)
    return chosen


def visible_list() -> str:
    """For ConfigProto.gpu_options.visible_device_list; "" if TensorFlow is to see all GPUs."""
    return "" if _chosen is None else str(_chosen)


def report() -> list[tuple[str, str]]:
    """For the doctor: one line per rank with its GPU; empty without GPUs."""
    return [("GPU" if number == 0 else "", line) for number, line in enumerate(_report)]


def _assign_gpus(_context: ModuleType) -> None:
    """Called when TensorFlow's context has been imported. Collective; sets _chosen and _report."""
    global _chosen, _report
    if not _is_for_gpus():
        return
    own = [(address, name, _numa(address)) for address, name in c_api.gpus()]
    everyone = control_plane.headers("GPUs", {"machine": _machine(), "gpus": own, **_host()})
    here = [rank for rank, facts in enumerate(everyone) if facts["machine"] == _machine()]
    choices: dict[int, int | None] = {}
    for machine in dict.fromkeys(facts["machine"] for facts in everyone):
        members = [rank for rank, facts in enumerate(everyone) if facts["machine"] == machine]
        seen = [[address for address, _, _ in everyone[rank]["gpus"]] for rank in members]
        choices.update(zip(members, choose(seen), strict=True))
    _report = [_line(rank, facts, choices[rank]) for rank, facts in enumerate(everyone)]
    mine = choices[group.rank]
    if mine is None:
        return
    sharing = [
        rank
        for rank in here
        if (index := choices[rank]) is not None and everyone[rank]["gpus"][index][0] == own[mine][0]
    ]
    if len(sharing) > 1 and config.grow_gpu_memory():
        if group.rank == sharing[0] == 0:
            log.say(
                f"{len(sharing)} ranks share {own[mine][1]} at {own[mine][0]}; each allocates its "
                "memory as needed. One rank per GPU is faster"
            )
    if len(own) > 1:
        _chosen = mine


def is_chosen() -> bool:
    """Whether a GPU of several was chosen; valid once TensorFlow's context has been imported."""
    return _chosen is not None


def choosing(original: Any) -> Any:
    """Wraps Context.ensure_initialized until its first call, which creates the devices."""

    def ensure_initialized(self: Any) -> None:
        type(self).ensure_initialized = original
        gpus = self.list_physical_devices("GPU")
        if _chosen is not None and self.get_visible_devices("GPU") == gpus:
            self.set_visible_devices([gpus[_chosen]], "GPU")
        original(self)

    return ensure_initialized


def _is_for_gpus() -> bool:
    from tensorflow.python.platform import build_info

    return bool(build_info.build_info.get("is_cuda_build"))


def _machine() -> str:
    """Identifies the machine; the same in all its containers, which share its GPUs."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _numa(address: str) -> str:
    node = Path(f"/sys/bus/pci/devices/{address.lower()}/numa_node")
    return node.read_text().strip() if node.exists() else "unknown"


def _host() -> dict[str, Any]:
    return {"host": os.uname().nodename, "cores": len(os.sched_getaffinity(0))}


def _line(rank: int, facts: dict[str, Any], chosen: int | None) -> str:
    where = f"rank {rank} on {facts['host']}, {facts['cores']} cores"
    if chosen is None:
        return f"{where}: none"
    address, name, numa = facts["gpus"][chosen]
    return f"{where}: {name} at {address}, NUMA node {numa}"
