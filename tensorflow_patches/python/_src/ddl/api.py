"""ddl.init, and the rank and size functions.

`import ddl` calls ddl.init() with DDL_OPTIONS. From then on optimizers still average gradients
automatically, but the script partitions its data and writes its files itself (as with
TF_MPI_SHARD=off and TF_MPI_IO=all).
"""

from __future__ import annotations

from tensorflow.mpi import config
from tensorflow.mpi._src.ddl import modes
from tensorflow.mpi._src.lifecycle import engine
from tensorflow.mpi._src.presence import presence
from tensorflow.mpi._src.runtime import c_api, group, hooks, log

_initialized = False


def init(options: str | None = None) -> None:
    """Leaves data and files to the script; a repeated call only checks `options`, which replaces
    DDL_OPTIONS. Raises modes.ModeError, a ValueError, for unknown options and for a mode that does
    not fit the number of ranks."""
    global _initialized
    given = modes.parse_options(config.ddl_options() if options is None else options)
    if given.mode is not None:
        given.mode.check(group.group_size)
    if _initialized:
        return
    _initialized = True
    if not hooks.active:
        return
    config.leave_data_to_script()
    presence.needs_all("a script that uses DDL's API")
    engine.leave_data_to_script()
    if group.rank == 0 and config.get("TF_MPI_LOG_LEVEL") != "warning":
        stats = "; for -dump_iter's figures set TF_MPI_STATS=1" if given.dump_iter else ""
        log.say(
            "this ddl is part of tensorflow.mpi. Optimizers average gradients; the script splits "
            f"the data, and decides which rank writes files and progress bars{stats}"
        )


def rank() -> int:
    return group.group_rank


def size() -> int:
    return group.group_size


def local_rank() -> int:
    return _topology()[2]


def local_size() -> int:
    return _topology()[3]


def local_gpuid() -> int:
    """The rank's number on its node, which a DDL script uses as the number of its GPU."""
    return local_rank()


def _topology() -> tuple[int, int, int, int, int]:
    return c_api.topology() if group.connected() else (0, 1, 0, 1, 1)
