"""Files that the script reads, changes and writes anew: the change is made once.

A script adds its result to the list in results.json. The first rank writes the longer list. If
another reads that before it has written its own, it would add the result once more. So a rank that
has read a version that it has not written yet does not replace it: the other rank's is what a
single process would have written.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any

from tensorflow.mpi._src.files import journal, names, saves
from tensorflow.mpi._src.runtime import group, log

_ahead: set[str] = set()  # files that this rank has read in a version to come


def _key(path: str) -> str:
    return f"write {path}"


def opening(path: Any) -> None:
    """Called before the script opens `path` to read it."""
    if isinstance(path, (str, bytes, os.PathLike)) and saves.shared():
        real = os.path.realpath(os.fsdecode(path))
        if journal.made_more_often(_key(real)):
            _ahead.add(real)


def is_ahead(path: str) -> bool:
    """Whether this rank has read the version of `path` that it now writes."""
    return path in _ahead


def dropped(path: str, descriptor: int) -> None:
    """Called before this rank's version of `path`, in the open file, is dropped. Says so if it
    differs from what is there."""
    if path not in _ahead or group.rank > 1:
        return
    with contextlib.suppress(OSError), open(path, "rb") as there:
        if there.read() != os.pread(descriptor, os.fstat(descriptor).st_size, 0):
            log.once(
                f"rank {group.rank} has read '{path}' after another rank had changed it, and does "
                "not write its own change, which a single process makes once. If each rank has "
                "something to add, collect it first (tf.mpi.allgather) and write on rank 0",
                key="ahead",
                every_rank=True,
            )


def begins(path: str) -> bool:
    """Called before this rank's version of `path`, a real path, takes its place, or is dropped.
    Returns whether it is noted, for ends()."""
    return names.pattern(path) == path and journal.begin(_key(path))


def ends(path: str, noted: bool, written: bool) -> None:
    """written: whether this rank is done with its version."""
    if written:
        _ahead.discard(path)
    if noted:
        (journal.succeed if written else journal.fail)(_key(path))
