"""Calls that make, rename or remove paths: one that another rank has already made is taken as done.

All ranks run the script's os.mkdir("run") on one disk. The first rank succeeds, and the others find
that the folder exists, although the script creates it once. So a call that fails because its result
is there already succeeds, if another rank of the node has made the same call more often than this
rank, or since this rank's last one. The calls of other nodes are not known: there the error is
raised, and explanations.py explains it.

Each rank notes its calls in a file that all jobs of a user on a node share: before the call and,
with the result, after it. So a rank whose call fails knows whether another rank is still in its.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import fcntl
import functools
import json
import os
import shutil
import threading
import time
from typing import Any

from tensorflow.mpi import config
from tensorflow.mpi._src.files import names, private, saves
from tensorflow.mpi._src.runtime import group

_FILE = "calls"
_MADE = (errno.EEXIST, errno.ENOENT, errno.ENOTEMPTY)
_MADE_CODES = (5, 6)  # of tf.errors: NOT_FOUND, ALREADY_EXISTS
_BEGINS, _SUCCEEDS, _FAILS, _REPEATS = "begins", "succeeds", "fails", "repeats"
_SAYS = "says"
_WAIT_SECONDS = 10.0  # for another rank's call to end, such as a removal of many files
_POLL_SECONDS = 0.001
_MOST = 20_000  # calls of a rank that are noted: the first that it makes

_lock = threading.Lock()  # of all below
_file: int | None = None  # open until the process exits
_is_opening = False  # in which private.py calls os.mkdir
_read = 0  # bytes
_read_lines = 0
_noted = 0  # calls of this rank
_calls: dict[str, _Calls] = {}  # by key


class _Calls:
    """What the ranks of this job have noted about one call."""

    def __init__(self) -> None:
        self.pending: collections.Counter[int] = collections.Counter()  # by rank
        self.done: collections.Counter[int] = collections.Counter()  # by rank, with repeated ones
        # Numbers of notes: this rank's last end, the one before its last call, and another rank's
        # last success.
        self.own_end = self.own_end_before = self.last_of_another = 0
        self.returned: str | None = None  # by that
        self.said: list[str] = []  # by say()

    def add(self, rank: int, what: str, returned: str | None, number: int) -> None:
        own = rank == group.rank
        if what == _SAYS:
            self.said.append(returned or "")
            return
        if what == _BEGINS:
            self.pending[rank] += 1
            if own:
                self.own_end_before = self.own_end
            return
        self.pending[rank] -= what != _REPEATS
        self.done[rank] += what != _FAILS
        if own:
            self.own_end = number
        elif what == _SUCCEEDS:
            self.last_of_another, self.returned = number, returned

    def made_by_another(self) -> bool:
        """Since this rank's call before, or more often than by this rank."""
        return self.last_of_another > self.own_end_before or any(
            done > self.done[group.rank] for done in self.done.values()
        )

    def may_be_made(self) -> bool:
        """Whether another rank is in this call."""
        return any(pending and rank != group.rank for rank, pending in self.pending.items())


def taken_as_done(function: Any) -> Any:
    """Wraps a function of os, shutil or tf.io.gfile whose first arguments are paths."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        key = None
        if saves.shared() and _noted < _MOST and not _is_opening:
            key = _key(function.__name__, args, kwargs)
        if key is None or not _note(key, _BEGINS):
            return function(*args, **kwargs)
        try:
            returned = function(*args, **kwargs)
        except BaseException as error:
            _note(key, _FAILS)
            if not _is_made(error) or not _made_by_another(key):
                raise
            _note(key, _REPEATS)
            return _calls[key].returned
        _note(key, _SUCCEEDS, returned if isinstance(returned, str) else None)
        return returned

    return call


def removing(rmtree: Any) -> Any:
    """Wraps shutil.rmtree, which fails if another rank removes a file of the folder first."""

    @functools.wraps(rmtree)
    def remove(path: Any, *args: Any, **kwargs: Any) -> Any:
        until = time.monotonic() + _WAIT_SECONDS
        while True:
            try:
                return rmtree(path, *args, **kwargs)
            except OSError as error:
                gone = error.errno in _MADE and saves.shared()
                if not gone or not os.path.lexists(path) or time.monotonic() >= until:
                    raise

    return taken_as_done(remove)


def say(key: str, value: str) -> list[str]:
    """What the ranks of this node have said under `key`, in order, the last of which is `value`."""
    if not _note(key, _SAYS, value):
        return [value]
    with _lock:
        _read_notes()
        return list(_calls[key].said)


def _key(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Identifies a call by its paths.

    None if they are relative to an open folder, or differ by rank, such as those of tempfile, which
    calls os.mkdir for a path that nobody has.
    """
    if any(kwargs.get(folder) is not None for folder in ("dir_fd", "src_dir_fd", "dst_dir_fd")):
        return None
    given = [*args, *(kwargs[one] for one in ("path", "name", "src", "dst") if one in kwargs)]
    paths = [os.fspath(one) for one in given if isinstance(one, (str, bytes, os.PathLike))]
    key = " ".join([name, *(os.path.abspath(os.fsdecode(path)) for path in paths)])
    return key if names.pattern(key) == key else None


def _note(key: str, what: str, returned: str | None = None) -> bool:
    """Appends to the file; False if there is none."""
    global _noted
    with contextlib.suppress(OSError):
        _noted += what == _BEGINS
        line = json.dumps([_job(), group.rank, key, what, returned]) + "\n"
        os.write(_open(), line.encode())
        return True
    return False


@functools.cache
def _job() -> str:
    """Identifies this job on this node. Without the launcher's word, its ranks have one parent."""
    return config.job() or str(os.getppid())


def _open() -> int:
    """The shared file, which the first of the ranks that use it empties."""
    global _file, _is_opening
    with _lock:
        if _file is None:
            _is_opening = True
            try:
                _file = private.open_file(_FILE, os.O_APPEND)
            finally:
                _is_opening = False
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.ftruncate(_file, 0)
            fcntl.flock(_file, fcntl.LOCK_SH)
        return _file


def _is_made(error: BaseException) -> bool:
    """Whether the call failed because its result is there already."""
    return (
        isinstance(error, shutil.Error)
        or getattr(error, "errno", None) in _MADE
        or getattr(error, "error_code", None) in _MADE_CODES
    )


def _made_by_another(key: str) -> bool:
    """Whether another rank has made this call; waits for one that is in it.

    This rank has noted that its own has ended, so no rank waits for another that waits.
    """
    until = time.monotonic() + _WAIT_SECONDS
    while True:
        with _lock:
            _read_notes()
            calls = _calls[key]
            if calls.made_by_another():
                return True
            if not calls.may_be_made() or time.monotonic() >= until:
                return False
        time.sleep(_POLL_SECONDS)


def _read_notes() -> None:
    """Reads the notes of this job since the last call; under _lock."""
    global _read, _read_lines
    assert _file is not None
    data = os.pread(_file, os.fstat(_file).st_size - _read, _read)
    *lines, rest = data.split(b"\n")
    _read += len(data) - len(rest)
    for line in lines:
        job, rank, key, what, returned = json.loads(line)
        _read_lines += 1
        if job == _job():
            _calls.setdefault(key, _Calls()).add(rank, what, returned, _read_lines)
