"""Log lines on stderr, prefixed with the rank."""

from __future__ import annotations

import contextlib
import sys

from tensorflow.mpi import config
from tensorflow.mpi._src.runtime import group


def say(line: str) -> None:
    """Prints one line."""
    say_as(group.group_rank, group.group_size, line)


def say_as(rank: int, size: int, line: str) -> None:
    """Like `say`, also before the start, when the group does not know the rank yet."""
    with contextlib.suppress(Exception):  # the script may have closed or replaced sys.stderr
        print(f"tensorflow.mpi rank {rank}/{size}: {line}", file=sys.stderr, flush=True)


def flush() -> None:
    """Flushes the output, before this process ends."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # as in say_as
            stream.flush()


_logged_keys: set[str] = set()  # keys of once()


def once(line: str, key: str | None = None, *, every_rank: bool = False) -> None:
    """Like `say`, but only once for each `key` (default: the line) and, unless `every_rank`, only
    on rank 0 of the group, even where averages are left to the script."""
    key = line if key is None else key
    if key not in _logged_keys and (every_rank or group.group_rank == 0):
        _logged_keys.add(key)
        say(line)


def debug(line: str, once: bool = False) -> None:
    """Like `say`, but only with TF_MPI_LOG_LEVEL=debug; with `once`, not a second time."""
    if config.get("TF_MPI_LOG_LEVEL") == "debug" and not (once and line in _logged_keys):
        if once:
            _logged_keys.add(line)
        say(line)
