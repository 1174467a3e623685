"""Lines on stderr, with the rank."""

from __future__ import annotations

import sys

from tensorflow.mpi import config
from tensorflow.mpi._src.runtime import group


def say(line: str) -> None:
    """One line, from this rank."""
    print(
        f"tensorflow.mpi rank {group.group_rank}/{group.group_size}: {line}",
        file=sys.stderr,
        flush=True,
    )


def debug(line: str) -> None:
    """As `say`, with TF_MPI_LOG_LEVEL=debug."""
    if config.get("TF_MPI_LOG_LEVEL") == "debug":
        say(line)
