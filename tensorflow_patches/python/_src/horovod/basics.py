"""Horovod's init, shutdown, and rank and size functions.

From init() on, the script is responsible for averaging. Until then averaging is automatic, so that
a library which merely imports Horovod if it is available does not turn anything off.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tensorflow.mpi import config
from tensorflow.mpi._src.horovod import process_sets as sets
from tensorflow.mpi._src.lifecycle import engine
from tensorflow.mpi._src.messaging import control_plane
from tensorflow.mpi._src.runtime import c_api, group, log

_NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."


class _State:
    """The state of this process between init() and shutdown(). `everyone`: each rank's local rank
    and local size."""

    def __init__(self, rank: int, size: int, local: tuple[int, int], everyone: list[Any]) -> None:
        self.rank, self.size = rank, size
        self.local_rank, self.local_size = local
        rail = [r for r, (local_rank, _) in enumerate(everyone) if local_rank == self.local_rank]
        self.cross_rank, self.cross_size = rail.index(rank), len(rail)
        self.homogeneous = len({local_size for _, local_size in everyone}) == 1


_state: _State | None = None
_inits = 0  # completed calls of init, so that each exchange of local ranks has its own name


def init(comm: Any = None, process_sets: Any = None) -> None:
    """A collective: all ranks must call it.

    Args:
      comm: None, [], or a list of all ranks.
      process_sets: a list of ProcessSets to register; or "dynamic", so that the script may add and
        remove process sets later.

    Raises NotImplementedError for any other `comm`.
    """
    global _state, _inits
    if group.forked_from is not None:
        raise RuntimeError(
            f"hvd.init() was called in a process that rank {group.forked_from} has forked; call it "
            "in the rank itself"
        )
    rank, size = group.group_rank, group.group_size
    if comm is not None and (
        not isinstance(comm, Sequence) or sorted(comm) not in ([], list(range(size)))
    ):
        raise NotImplementedError(
            "hvd.init(comm) does not accept a communicator or a subset of the ranks, because "
            f"tensorflow.mpi has one group of all {size} ranks. Start as many ranks as the script "
            "needs, or use process sets"
        )
    if _state is not None:
        if process_sets is not None and not isinstance(process_sets, str):
            sets.adopt(list(process_sets))
        return
    if engine.leave_to_script() and rank == 0:
        _announce()
    _warn_if_off()
    local, everyone = (0, 1), [(0, 1)]
    if group.connected():
        _, _, local_rank, local_size, _ = c_api.topology()
        local = local_rank, local_size
        exchanged = control_plane.headers_for_script(f"hvd.init {_inits}", local)
        everyone = [tuple(one) for one in exchanged]
    _inits += 1
    _state = _State(rank, size, local, everyone)
    sets.start(dynamic=config.horovod_dynamic_process_sets() or process_sets == "dynamic")
    if process_sets is not None and not isinstance(process_sets, str):
        sets.register_all(list(process_sets))


def _announce() -> None:
    if config.get("TF_MPI_LOG_LEVEL") != "warning":
        log.say(
            "hvd.init(): this horovod is part of tensorflow.mpi. From here on the script averages "
            "gradients, splits the data, and decides which rank writes files and progress bars (as "
            "with TF_MPI_SHARD=off and TF_MPI_IO=all)"
        )


def _warn_if_off() -> None:
    """Warns if the launcher has started several ranks but averaging is off."""
    launcher = config.launcher()
    if not group.connected() and launcher is not None and launcher.size > 1:
        print(
            f"tensorflow.mpi: hvd.size() is 1 in each of the {launcher.size} processes, because "
            f"averaging is off: {config.gate().reason}",
            file=sys.stderr,
        )


def shutdown() -> None:
    """Resets Horovod's state. The ranks stay connected, and init() may be called again."""
    global _state
    _state = None
    sets.forget()


def is_initialized() -> bool:
    return _state is not None


def state() -> _State:
    """Raises ValueError before init()."""
    if _state is None:
        raise ValueError(_NOT_INITIALIZED)
    return _state


def rank() -> int:
    return state().rank


def size() -> int:
    return state().size


def local_rank() -> int:
    return state().local_rank


def local_size() -> int:
    return state().local_size


def cross_rank() -> int:
    """This rank's index among the ranks with the same local_rank(), one per node."""
    return state().cross_rank


def cross_size() -> int:
    return state().cross_size


def is_homogeneous() -> bool:
    """Whether all nodes have the same number of ranks."""
    return state().homogeneous


def mpi_threads_supported() -> bool:
    """True: one thread makes all MPI calls, so any thread of the script may call collectives."""
    state()
    return True


def _always(answer: Any) -> Callable[[], Any]:
    return lambda: answer


mpi_enabled = mpi_built = _always(True)
gloo_enabled = gloo_built = ddl_built = ccl_built = cuda_built = rocm_built = _always(False)
nccl_built = _always(0)
_get_process_set_ids_and_ranks = sets.get_process_set_ids_and_ranks  # Horovod's own tests call it


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    _refuse_timeline("start", f"={os.path.basename(str(file_path))}")


def stop_timeline() -> None:
    _refuse_timeline("stop")


def _refuse_timeline(what: str, value: str = "") -> None:
    """Raises NotImplementedError: a trace always covers the whole run."""
    state()
    raise NotImplementedError(
        f"hvd.{what}_timeline is not available: tensorflow.mpi traces the whole run; to get a "
        f"trace, start the run with TF_MPI_TIMELINE{value}"
    )
