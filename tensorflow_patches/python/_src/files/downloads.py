"""keras.utils.get_file, and so keras.datasets, by several ranks of a node: one of them downloads.

get_file writes straight into the file that it looks for, and extracts over what is there, so ranks
that call it at once read one another's halves. Here they take turns, and who comes second gets what
the first has fetched. Between nodes that share a cache nothing is ordered.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from tensorflow.mpi import config, errors
from tensorflow.mpi._src.runtime import hooking, hooks, log

_started = time.time()
_calls: collections.Counter[str] = collections.Counter()  # that force a download, by arguments

_POLL_SECONDS = 0.05


def install() -> None:
    """Called once, when TensorFlow's libraries are loaded."""
    for module in ("keras.src.utils.file_utils", "tf_keras.src.utils.data_utils"):
        hooking.when_imported(module, _hook)


def _hook(module: ModuleType) -> None:
    hooking.wrap(module, "get_file", _in_turn)


def _in_turn(get_file: Any) -> Any:
    def in_turn(*args: Any, **kwargs: Any) -> Any:
        call = repr((args, sorted(kwargs.items())))
        # The same call again gets what is there, which another rank may be reading: to extract it
        # anew would truncate that. Not if the script forces each download.
        _calls[call] += bool(kwargs.get("force_download"))
        # Ranks of one node have one parent. Where they do not, each calls get_file in its turn.
        turn = f"{os.getppid()} {_calls[call]} "
        with _locked(call) as file:
            text = os.read(file, os.fstat(file).st_size).decode()
            path = text[len(turn) :]
            fresh = os.fstat(file).st_mtime >= _started
            if fresh and text.startswith(turn) and os.path.exists(path):
                return path
            path = get_file(*args, **kwargs)
            os.ftruncate(file, 0)
            os.pwrite(file, f"{turn}{path}".encode(), 0)
            return path

    return in_turn


@contextlib.contextmanager
def _locked(call: str) -> Iterator[int]:
    """A file of this user's for `call`, on this node, that one process holds at a time.

    The system releases it if its holder dies. Raises tf.errors.DeadlineExceededError after
    TF_MPI_STALL_TIMEOUT; PermissionError if somebody else may write the file, whose name can be
    guessed.
    """
    name = hashlib.sha256(call.encode()).hexdigest()[:20]
    path = os.path.join(tempfile.gettempdir(), f"tensorflow-mpi-{os.getuid()}-{name}")
    # Not through a link that another user has left there.
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        status = os.fstat(file)
        mine = status.st_uid == os.getuid() and stat.S_ISREG(status.st_mode)
        if not mine or status.st_nlink != 1 or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(
                f"'{path}', by which the ranks of a node take turns to download, is another "
                "user's: remove it, or set TMPDIR to a folder of your own"
            )
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
            f"rank {hooks.rank} has waited {waited:.0f} s for another process of this node to "
            f"end get_file{call}"
        )
        if timeout and waited >= timeout:
            how = "fetch the file before the run, or set TF_MPI_STALL_TIMEOUT higher"
            raise errors.error_from_code(errors.DEADLINE_EXCEEDED, f"{what}; {how}")
        if warning and waited >= next_warning:
            next_warning += warning
            log.say(what)
        time.sleep(_POLL_SECONDS)
