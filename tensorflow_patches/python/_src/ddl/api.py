"""ddl.init and who is who.

`import ddl` is ddl.init() with DDL_OPTIONS. From there on optimizers average, as they do without
it; the script partitions its data and writes its files itself (TF_MPI_SHARD=off, TF_MPI_IO=all).
"""

from __future__ import annotations

from tensorflow.mpi import config
from tensorflow.mpi._src.ddl import modes
from tensorflow.mpi._src.lifecycle import engine
from tensorflow.mpi._src.presence import presence
from tensorflow.mpi._src.runtime import c_api, group, hooks, log

_initialized = False


def init(options: str | None = None) -> None:
    """`options`: in place of DDL_OPTIONS. Raises modes.ModeError, a ValueError, for options that
    are not known and for a shape that the ranks do not have."""
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
    presence.needs_all("what DDL's functions have made")
    engine.leave_data_to_script()
    if group.rank == 0 and config.get("TF_MPI_LOG_LEVEL") != "warning":
        stats = "; for -dump_iter's figures set TF_MPI_STATS=1" if given.dump_iter else ""
        log.say(
            "ddl is tensorflow.mpi's here. Optimizers average; parts of the data, files and "
            f"progress bars are as the script has them{stats}"
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
    """The GPU of this node that is this rank's, by number."""
    return local_rank()


def _topology() -> tuple[int, int, int, int, int]:
    return c_api.topology() if group.connected() else (0, 1, 0, 1, 1)
