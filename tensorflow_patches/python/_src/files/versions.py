"""Files that the script overwrites: the first rank of a node to reach a version writes it.

A script may add its result to the list in results.json. The first rank writes the longer list;
another would read that, and add the result once more. And a late rank would replace a version with
an older one. So a rank drops its version if another rank of the node has already written that
version, and the file exists.
"""

from __future__ import annotations

import collections
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
_begun: collections.Counter[str] = collections.Counter()  # the latest number, by path


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
        # A rank that is still running the call may have put its version there already.
        if is_written(real, _next(real)) or journal.is_running(key(real)):
            _read.add(real)
        journal.note_used(real)


def number(path: str) -> int:
    """The number of the version of `path`, a real path, that this rank begins.

    0 if versions cannot be matched (a path with a rank-specific part is a different file on each
    rank), or the file is part of a call that is noted as a whole.
    """
    if _thread.uncounted or names.pattern(path) != path:
        return 0
    # Counted when it is begun: other ranks may close theirs, and all may wait for one another,
    # before this one is closed.
    _begun[path] = _next(path)
    return _begun[path]


def _next(path: str) -> int:
    return max(_begun[path], journal.count(key(path))) + 1


def is_written(path: str, number: int) -> bool:
    """Whether another rank has written the version `number` of `path`, a real path."""
    return 0 < number <= journal.most(key(path))


def is_same(path: str, number: int, there: os.stat_result) -> bool:
    """Whether the file at `path` is another rank's version `number`, and this rank has not read it
    before it has written its own."""
    returned = journal.returned(key(path))
    is_it = journal.most(key(path)) == number and returned == str(there.st_ino)
    return is_it and path not in _read


def is_unfinished(path: str, there: os.stat_result) -> bool:
    """Whether another rank, which has placed the file at `path`, still has it open."""
    return not journal.times_published(_closed(path, there))


def _closed(path: str, status: os.stat_result) -> str:
    return f"closed {status.st_ino} {path}"


def are_known(path: str) -> bool:
    """Whether is_written(path) knows the versions of all ranks."""
    return journal.has_all_ranks() and names.pattern(path) == path


def uncounted() -> contextlib.AbstractContextManager[None]:
    """Inside, files that this thread writes are parts of a call that is noted as a whole."""
    return threads.inside(_thread, uncounted=True)


def begin(path: str, number: int) -> bool:
    """Called before this rank's version `number` of `path`, a real path, is moved there, or
    dropped. Returns whether it is noted."""
    return number > 0 and journal.begin(key(path))


def end(path: str, number: int, settled: bool) -> None:
    """Called after begin(). number: 0 if it was not noted. settled: this rank is done with it."""
    if settled:
        _read.discard(path)
    if number and settled:
        inode = None
        with contextlib.suppress(OSError):
            inode = str(os.stat(path).st_ino)
        journal.succeed(key(path), inode, number)
    elif number:
        journal.fail(key(path))


def note_placed(path: str, status: os.stat_result, closed: bool) -> None:
    """Notes that this rank has moved its version to `path`, a real path, and whether it is complete
    now."""
    journal.note_made(key(path), path, status)
    if closed:
        journal.publish(_closed(path, status), "")


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
