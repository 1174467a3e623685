"""Files that the script appends to: text that all ranks append is in the file once.

Each rank runs open("log.csv", "a") and appends the same lines. The first rank to append a text
writes it. The others find it in the file, after what they have appended before, and skip it. So the
file is as from one process. In a new file tell() is 0 on every rank, so that all of them write the
header. Text that differs by rank is in the file once per rank; rank 0 warns at exit.

A rank learns through journal.py how large the file was when the first of the ranks opened it.
Ranks of other nodes do not know that size, and append their own text.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import io
import os
import time
from collections.abc import Iterator
from typing import Any

from tensorflow.mpi._src.files import journal, private, saves
from tensorflow.mpi._src.runtime import log

_LOCK_FILE = "appends"
_LOCK_SECONDS = 5.0  # a rank that is stopped may hold the lock
_POLL_SECONDS = 0.001

# Guards writes and the state of this module. It is the journal's lock: a finalizer may append while
# its thread holds the journal's, so with two locks two threads could wait for each other.
_lock = journal.lock
# By path: how often this rank has truncated, renamed or removed it.
_truncations: collections.Counter[str] = collections.Counter()
_files: dict[tuple[str, int, int], _File] = {}  # by path, inode, and truncations
_renamed: dict[str, str] = {}  # by path: see renamed()
_lock_file: int | None = None  # open until the process exits
_is_alone = False  # whether a thread is inside alone_on_node()


class _File:
    """A file as this rank has appended to it."""

    def __init__(self, size: int) -> None:
        self.begin = size  # the size when the ranks began to append
        self.end = size  # where this rank's last text ends
        self.own_bytes = 0  # appended by this rank, or found there instead


class Raw(io.FileIO):
    """A raw file, open to append, to which the ranks of a node write each text once."""

    def __init__(self, path: Any) -> None:
        name = os.path.abspath(os.fsdecode(path))
        real = os.path.realpath(name)
        with alone_on_node():
            path = _renamed.get(name, path)
            is_new = not os.path.exists(path)
            super().__init__(path, "a+")  # also reads what other ranks have appended
            status = os.fstat(self.fileno())
            if is_new:
                journal.note_begun(real, status)
            journal.note_used(real)
            known = name, status.st_ino, _truncations[name]
            file = _files.get(known)
            if file is None or file.end > status.st_size:
                # The first rank to open this file publishes its size. A new file may have the inode
                # of a removed one, so the key contains how many files have been begun here with it.
                begun = journal.times_begun(real, status)
                key = f"append {begun} {status.st_ino} {name}"
                size = min(int(journal.publish(key, str(status.st_size))[0]), status.st_size)
                file = _files[known] = _File(size)
        self._file = file
        self.seek(0, os.SEEK_END)

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """The end is that of this rank's last text, although others may have appended more."""
        if whence == os.SEEK_END:
            offset, whence = self._file.end + offset, os.SEEK_SET
        return super().seek(offset, whence)

    def write(self, data: Any) -> int:
        if not saves.shared():  # no longer, for example in a forked process
            return super().write(data)
        text, file = bytes(data), self._file
        with alone_on_node():
            size = os.fstat(self.fileno()).st_size
            found = _find(text, os.pread(self.fileno(), max(size - file.end, 0), file.end))
            if found is None:
                text = text[: super().write(text)]
                file.end = os.fstat(self.fileno()).st_size
            else:
                file.end += found + len(text)
            file.own_bytes += len(text)
            self.seek(0, os.SEEK_END)
        return len(text)


class Writable(io.BufferedWriter):
    """Has the methods of TensorFlow's WritableFile that tf.io.gfile's files call."""

    def __init__(self, path: Any) -> None:
        super().__init__(Raw(path))

    append = io.BufferedWriter.write


def _find(text: bytes, appended: bytes) -> int | None:
    """Where `text` is in `appended`: at its beginning, or at the beginning of a line; None if it is
    not there."""
    if appended.startswith(text):
        return 0
    found = appended.find(b"\n" + text)
    return found + 1 if found >= 0 else None


def at_end() -> None:
    """At exit, before the ranks join: publishes how much this rank has appended."""
    with _lock:
        for (path, inode, _), file in _files.items():
            journal.publish(f"appended {inode} {path}", str(file.own_bytes))


def warn_of_different_text() -> None:
    """On rank 0, after the ranks have joined: compares how much a file has grown with the most that
    one rank has appended. Some may append less, such as no header to a file that exists."""
    with _lock:
        files = {path: (inode, file) for (path, inode, _), file in _files.items()}  # latest by path
    for path, (inode, file) in files.items():
        most = max(map(int, journal.publish(f"appended {inode} {path}", "0")))
        with contextlib.suppress(OSError):
            status = os.stat(path)
            more = status.st_size - file.begin - most
            if status.st_ino == inode and more > 0:
                log.once(
                    f"'{path}' has grown by {more} bytes more than any one rank has appended: text "
                    "that differs by rank, such as a time, is there once per rank, and all text "
                    "once per node. To append on one rank only: if tf.mpi.rank() == 0",
                    key="all append",
                )


def note_truncation(path: Any) -> None:
    """Called when the script opens `path` to overwrite it, renames or removes it."""
    with _lock:
        _truncations[os.path.abspath(os.fsdecode(path))] += 1


@contextlib.contextmanager
def renamed(path: str, now: str) -> Iterator[None]:
    """Inside, opening `path` to append opens `now`: the present path of a file that another rank
    has begun as `path`, or os.devnull if it was removed. Call it inside alone_on_node()."""
    _renamed[path] = now
    try:
        yield
    finally:
        del _renamed[path]


@contextlib.contextmanager
def alone_on_node() -> Iterator[None]:
    """Keeps other threads and other ranks of the node from appending, from moving a finished file
    into place (atomic.py), and from making, renaming or removing paths, except by the calls in
    shared_calls._LONG. After _LOCK_SECONDS it continues without the ranks' lock. May be nested."""
    global _is_alone, _lock_file
    with _lock:
        if _is_alone:
            yield
            return
        with contextlib.suppress(OSError):
            if _lock_file is None:
                _lock_file = private.open_file(_LOCK_FILE)
            until = time.monotonic() + _LOCK_SECONDS
            while time.monotonic() < until:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(_lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                time.sleep(_POLL_SECONDS)
        _is_alone = True
        try:
            yield
        finally:
            _is_alone = False
            if _lock_file is not None:
                fcntl.flock(_lock_file, fcntl.LOCK_UN)
