"""keras.utils.get_file, and so keras.datasets: one rank per node downloads.

get_file writes directly into the final file, and extracts over existing files, so ranks that call
it at the same time would read one another's partial files. Here they take turns, and later ranks
use the file that the first one has fetched, if it is unchanged. Ranks on different nodes that share
a cache do not take turns.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from typing import Any

from tensorflow.mpi import config, errors
from tensorflow.mpi._src.files import private
from tensorflow.mpi._src.runtime import group, log

_started = time.time()
_calls: collections.Counter[str] = collections.Counter()  # of forced downloads, by arguments

_POLL_SECONDS = 0.05


def taking_turns(get_file: Any) -> Any:
    """Wraps get_file."""

    def in_turn(*args: Any, **kwargs: Any) -> Any:
        call = repr((args, sorted(kwargs.items())))
        # Unless the script forces each download, a repeated call gets the existing file: extracting
        # again would truncate what another rank may be reading.
        _calls[call] += bool(kwargs.get("force_download"))
        # Identifies this call on the ranks of a node, which usually have one parent process. If
        # they do not, each of them downloads in its turn.
        turn = [os.getppid(), _calls[call]]
        with _locked(call) as file:
            path = _fetched(file, turn)
            if path is None:
                path = get_file(*args, **kwargs)
                note = json.dumps([turn, path, private.digest(path)])
                os.ftruncate(file, 0)
                os.pwrite(file, note.encode(), 0)
            return path

    return in_turn


def _fetched(file: int, turn: list[int]) -> str | None:
    """The path that another rank has fetched in this turn, if its content is unchanged, or None."""
    if os.fstat(file).st_mtime < _started:  # the note is from an earlier run
        return None
    try:
        theirs, path, digest = json.loads(os.pread(file, os.fstat(file).st_size, 0))
        if theirs != turn:
            return None
        if private.digest(path) == digest:
            return str(path)
        log.say(f"'{path}' has changed since another rank of this node fetched it: fetching again")
    except (ValueError, OSError):  # the note is incomplete, or the file was removed
        pass
    return None


@contextlib.contextmanager
def _locked(call: str) -> Iterator[int]:
    """Holds this user's lock file for `call` on this node.

    The kernel releases the lock if its holder dies. Raises tf.errors.DeadlineExceededError after
    TF_MPI_STALL_TIMEOUT (0: never); PermissionError like private.open_file.
    """
    file = private.open_file(hashlib.sha256(call.encode()).hexdigest()[:20])
    try:
        _wait_for(file, call)
        yield file
    finally:
        os.close(file)


def _wait_for(file: int, call: str) -> None:
    warning, timeout = config.get("TF_MPI_STALL_WARNING"), config.get("TF_MPI_STALL_TIMEOUT")
    start = time.monotonic()
    next_warning = warning
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = time.monotonic() - start
        what = (
            f"rank {group.rank} has waited {waited:.0f} s for another process on this node to "
            f"finish get_file{call}"
        )
        if timeout and waited >= timeout:
            how = "fetch the file before the run, or increase TF_MPI_STALL_TIMEOUT"
            raise errors.error_from_code(errors.DEADLINE_EXCEEDED, f"{what}; {how}")
        if warning and waited >= next_warning:
            next_warning += warning
            log.say(what)
        time.sleep(_POLL_SECONDS)
