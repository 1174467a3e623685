"""Which GPU a rank uses: one of its own where there are enough, else one that few others use.

What the launcher has hidden stays hidden. A script that chooses for itself (CUDA_VISIBLE_DEVICES,
tf.config.set_visible_devices, visible_device_list) is left alone. CUDA_VISIBLE_DEVICES is not set
here: a process that does not see its neighbours' GPUs cannot reach their memory.
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

_chosen: int | None = None  # of the GPUs that this process sees; None: leave it to TensorFlow
_report: list[str] = []  # a line for each rank


def install() -> None:
    """Called once, on more than one rank, when TensorFlow's libraries are loaded."""
    hooking.when_imported("tensorflow.python.eager.context", _share_out)


def choose(seen: Sequence[Sequence[str]]) -> list[int | None]:
    """By rank of one machine, which GPU each uses, as a number in its own list.

    Args:
      seen: the addresses of the GPUs that each rank sees, in its order.
    """
    if all(own == seen[0] for own in seen):
        count = len(seen[0])
        order = sorted(range(count), key=seen[0].__getitem__)
        ranks = len(seen)
        return [
            order[rank if ranks <= count else rank * count // ranks] if count else None
            for rank in range(ranks)
        ]
    # The launcher has shared them out. Ranks to which it gave several take turns at them.
    chosen: list[int | None] = []
    for rank, own in enumerate(seen):
        before = sum(other == own for other in seen[:rank])
        order = sorted(range(len(own)), key=own.__getitem__)
        chosen.append(order[before % len(own)] if own else None)
    return chosen


def visible_list() -> str:
    """For ConfigProto.gpu_options.visible_device_list; "" where TensorFlow is to see all."""
    return "" if _chosen is None else str(_chosen)


def report() -> list[tuple[str, str]]:
    """For the doctor: a line for each rank with its GPU; none without GPUs."""
    return [("GPU" if number == 0 else "", line) for number, line in enumerate(_report)]


def _share_out(_context: ModuleType) -> None:
    global _chosen, _report
    if not _is_for_gpus():
        return
    own = [(address, name, _numa(address)) for address, name in c_api.gpus()]
    ranks = control_plane.headers("GPUs", {"machine": _machine(), "gpus": own, **_place()})
    here = [rank for rank, other in enumerate(ranks) if other["machine"] == _machine()]
    choices: dict[int, int | None] = {}
    for machine in dict.fromkeys(other["machine"] for other in ranks):
        members = [rank for rank, other in enumerate(ranks) if other["machine"] == machine]
        seen = [[address for address, _, _ in ranks[rank]["gpus"]] for rank in members]
        choices.update(zip(members, choose(seen), strict=True))
    _report = [_line(rank, other, choices[rank]) for rank, other in enumerate(ranks)]
    mine = choices[group.rank]
    if mine is None:
        return
    sharing = [
        rank
        for rank in here
        if (theirs := choices[rank]) is not None and ranks[rank]["gpus"][theirs][0] == own[mine][0]
    ]
    if len(sharing) > 1 and config.grow_gpu_memory():
        if group.rank == sharing[0] == 0:
            log.say(
                f"{len(sharing)} ranks share {own[mine][1]} at {own[mine][0]}, and each takes its "
                f"memory as it needs it; start as many ranks as there are GPUs for more speed"
            )
    if len(own) > 1:
        _chosen = mine


def is_chosen() -> bool:
    """Whether this rank has one of several GPUs; known when TensorFlow's context is imported."""
    return _chosen is not None


def choosing(original: Any) -> Any:
    """Of Context.ensure_initialized, which makes the devices at its first call."""

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
    """The same for containers of one machine, whose GPUs are the same."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _numa(address: str) -> str:
    node = Path(f"/sys/bus/pci/devices/{address.lower()}/numa_node")
    return node.read_text().strip() if node.exists() else "unknown"


def _place() -> dict[str, Any]:
    return {"host": os.uname().nodename, "cores": len(os.sched_getaffinity(0))}


def _line(rank: int, facts: dict[str, Any], chosen: int | None) -> str:
    where = f"rank {rank} on {facts['host']}, {facts['cores']} cores"
    if chosen is None:
        return f"{where}: none"
    address, name, numa = facts["gpus"][chosen]
    return f"{where}: {name} at {address}, NUMA node {numa}"
