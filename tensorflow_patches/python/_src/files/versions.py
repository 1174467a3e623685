"""Files that the script overwrites: each version is written once, by the first rank.

A script may add its result to the list in results.json. The first rank writes the longer list;
another would read that, and add the result once more. And a late rank would replace a version with
an older one. So a rank drops its version if another rank of the node has already written that
version, and the file exists.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
from typing import Any

from tensorflow.mpi._src.files import journal, names, saves, shared_calls
from tensorflow.mpi._src.runtime import group, log

_read: set[str] = set()  # files that this rank has read in a version that it had yet to write


def _key(path: str) -> str:
    return f"write {path}"


def note_read(path: Any) -> None:
    """Called after the script has opened `path` to read it."""
    if isinstance(path, (str, bytes, os.PathLike)) and saves.shared():
        real = os.path.realpath(os.fsdecode(path))
        if journal.is_behind(_key(real)):
            _read.add(real)


def is_written(path: str) -> bool:
    """Whether another rank has written the version of `path`, a real path, that this rank is about
    to write."""
    return journal.is_behind(_key(path))


def begin(path: str) -> bool:
    """Called before this rank's version of `path`, a real path, is moved there, or dropped.

    Returns whether it is noted, for end().
    """
    return names.pattern(path) == path and journal.begin(_key(path))


def end(path: str, noted: bool, written: bool, placed: bool) -> None:
    """Called after begin(). written: this rank is done with its version; placed: not dropped."""
    if written:
        _read.discard(path)
    if noted:
        (journal.succeed if written else journal.fail)(_key(path))
    if placed:
        shared_calls.note_made(path)


def warn_of_drop(path: str, descriptor: int) -> None:
    """Called before this rank's version of `path`, in the open file, is dropped.

    Warns if it differs from the file at `path` and this rank has read that. Other versions may
    differ harmlessly, for example in a time.
    """
    if path not in _read or group.rank > 1:
        return
    with contextlib.suppress(OSError):
        if not filecmp.cmp(path, f"/proc/self/fd/{descriptor}", shallow=False):
            log.once(
                f"rank {group.rank} has read '{path}' after another rank had changed it, and does "
                "not write its own change, which a single process makes once. If each rank has "
                "something to add, collect it first (tf.mpi.allgather) and write on rank 0",
                key="ahead",
                every_rank=True,
            )
