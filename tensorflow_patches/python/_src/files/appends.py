"""Files that the script appends to: text that all ranks append is there once.

Each rank runs open("log.csv", "a") and appends the same lines. The first rank to append a text
writes it. The others find it in the file, after what they have appended before, and skip it. So the
file is as from one process, and tell() is 0 for each rank in a new file, which makes all of them
write its header. Text that differs by rank is all there, and rank 0 says so at exit.

A rank learns through journal.py how large the file was when the first of the ranks opened it.
Ranks of other nodes do not know it, and append theirs.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import io
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

from tensorflow.mpi._src.files import journal, private, saves
from tensorflow.mpi._src.runtime import log

_LOCK_FILE = "appends"
_LOCK_SECONDS = 5.0  # a rank that is stopped may hold the lock
_POLL_SECONDS = 0.001

_lock = threading.Lock()  # of all below, and of writes
_truncations: collections.Counter[str] = collections.Counter()  # by this rank, by path
_files: dict[tuple[str, int], _File] = {}  # by path and inode


class _File:
    """A file as this rank has appended to it."""

    def __init__(self, size: int) -> None:
        self.begin = size  # when the ranks began to append
        self.end = size  # of this rank's last text
        self.own_bytes = 0  # that this rank has appended, with those that it found


class Raw(io.FileIO):
    """A raw file, open to append, to which the ranks of a node write each text once."""

    def __init__(self, path: Any) -> None:
        super().__init__(path, "a+")  # reads what other ranks have appended
        name = os.path.abspath(os.fsdecode(path))
        status = os.fstat(self.fileno())
        with _lock:
            file = _files.get((name, status.st_ino))
            if file is None:
                key = f"append {_truncations[name]} {status.st_ino} {name}"
                size = min(int(journal.say(key, str(status.st_size))[0]), status.st_size)
                file = _files[name, status.st_ino] = _File(size)
        self._file = file
        self.seek(file.end)

    def write(self, data: Any) -> int:
        if not saves.shared():  # in a forked process
            return super().write(data)
        text, file = bytes(data), self._file
        with _lock, _alone_on_node():
            size = os.fstat(self.fileno()).st_size
            found = _find(text, os.pread(self.fileno(), max(size - file.end, 0), file.end))
            if found is None:
                text = text[: super().write(text)]
                file.end = os.fstat(self.fileno()).st_size
            else:
                file.end += found + len(text)
            file.own_bytes += len(text)
            self.seek(file.end)
        return len(text)


class Writable(io.BufferedWriter):
    """Has the methods of TensorFlow's WritableFile that FileIO calls."""

    def __init__(self, path: Any) -> None:
        super().__init__(Raw(path))

    append = io.BufferedWriter.write


def _find(text: bytes, appended: bytes) -> int | None:
    """Where `text` is in what other ranks have appended; only at the start of a line, except if
    they have appended nothing else before it."""
    if appended.startswith(text):
        return 0
    found = appended.find(b"\n" + text)
    return found + 1 if found >= 0 else None


def at_end() -> None:
    """At exit, before the ranks join: says how much this rank has appended."""
    for (path, inode), file in _files.items():
        journal.say(f"appended {inode} {path}", str(file.own_bytes))


def warn_of_different_text() -> None:
    """On rank 0, after the ranks have joined: compares the size of a file with what the rank that
    has appended most has appended. Others may have found a header there, and not appended it."""
    for (path, inode), file in _files.items():
        most = max(map(int, journal.say(f"appended {inode} {path}", "0")))
        with contextlib.suppress(OSError):
            status = os.stat(path)
            more = status.st_size - file.begin - most
            if status.st_ino == inode and more > 0:
                log.once(
                    f"'{path}' has {more} bytes more than any rank has appended: text that differs "
                    "by rank, such as a time, is there once for each, and all text once for each "
                    "node. Append on one rank: if tf.mpi.rank() == 0",
                    key="all append",
                )


def truncates(path: Any) -> None:
    """Called when the script opens `path` to write it anew."""
    with _lock:
        _truncations[os.path.abspath(os.fsdecode(path))] += 1


@contextlib.contextmanager
def _alone_on_node() -> Iterator[None]:
    """Keeps other ranks of the node from appending; not for long, lest a stopped rank stop all."""
    lock = private.open_file(_LOCK_FILE)
    try:
        until = time.monotonic() + _LOCK_SECONDS
        while time.monotonic() < until:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(lock)
