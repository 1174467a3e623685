"""Files that the script overwrites: the first rank of a node to reach a version writes it.

A script may add its result to the list in results.json. The first rank writes the longer list;
another would read that, and add the result once more. And a late rank would replace a version with
an older one. So a rank drops its version if another rank of the node has already written that
version, and the file exists.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
import threading
from typing import Any

from tensorflow.mpi._src.files import journal, names, saves
from tensorflow.mpi._src.runtime import c_api, group, log, threads

# Files that this rank has read after another rank had already written the version that this rank
# would write next.
_read: set[str] = set()


class _Thread(threading.local):
    uncounted = False


_thread = _Thread()


def key(path: str) -> str:
    """The journal's key of versions of `path`, a real path."""
    return f"write {path}"


def note_read(path: Any) -> None:
    """Called after the script has opened `path` to read it."""
    if isinstance(path, (str, bytes, os.PathLike)) and saves.shared():
        real = os.path.realpath(os.fsdecode(path))
        if journal.is_behind(key(real)):
            _read.add(real)


def is_written(path: str) -> bool:
    """Whether another rank has written the version of `path`, a real path, that this rank is about
    to write."""
    return journal.is_behind(key(path))


def are_known(path: str) -> bool:
    """Whether is_written(path) knows the versions of all ranks."""
    return journal.has_all_ranks() and names.pattern(path) == path


def uncounted() -> contextlib.AbstractContextManager[None]:
    """Inside, files that this thread writes are parts of a call that is noted as a whole."""
    return threads.inside(_thread, uncounted=True)


def is_uncounted() -> bool:
    """Whether this thread is inside uncounted()."""
    return _thread.uncounted


def begin(path: str) -> bool:
    """Called before this rank's version of `path`, a real path, is moved there, or dropped.

    Returns whether it is noted, for end().
    """
    # A path with a rank-specific part is a different file on each rank: versions cannot be matched.
    return names.pattern(path) == path and journal.begin(key(path))


def end(path: str, noted: bool, settled: bool) -> None:
    """Called after begin(). settled: this rank is done with its version."""
    if settled:
        _read.discard(path)
    if noted:
        (journal.succeed if settled else journal.fail)(key(path))


def note_placed(path: str, status: os.stat_result) -> None:
    """Notes that this rank has moved its version to `path`, a real path."""
    journal.note_made(key(path), path, status)


def warn_of_drop(path: str, descriptor: int) -> None:
    """Called before this rank's version of `path`, in the open file, is dropped.

    Warns if it differs from the file at `path` and this rank has read that file (_read). Versions
    may also differ harmlessly, for example in a time.
    """
    # Of local ranks 0 and 1, at least one drops its version, so each node prints one or two lines.
    if path not in _read or c_api.topology()[2] > 1:
        return
    with contextlib.suppress(OSError):
        if not filecmp.cmp(path, f"/proc/self/fd/{descriptor}", shallow=False):
            log.once(
                f"rank {group.rank} has read '{path}' after another rank had changed it, so its "
                "own change is not written. That is right if all ranks make the same change; if "
                "each adds something of its own, collect it (tf.mpi.allgather) and write on rank 0",
                key="ahead",
                every_rank=True,
            )
