"""What the ranks of a node have done to the script's files: which calls, how often, in which order.

Each rank notes its calls in a file that all jobs of a user on a node share: before the call and,
with the result, after it. So a rank knows what another has done, and whether it is still at it.
The calls of other nodes are not known. Ranks are told apart by their processes, because the
survivors of a failed rank get new numbers.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import functools
import json
import os
import threading
import time

from tensorflow.mpi import config
from tensorflow.mpi._src.files import private

_FILE = "calls"
_BEGINS, _SUCCEEDS, _FAILS, _REPEATS = "begins", "succeeds", "fails", "repeats"
_SAYS = "says"
_WAIT_SECONDS = 10.0  # for another rank's call to end, such as a removal of many files
_POLL_SECONDS = 0.001
_MOST = 20_000  # calls of a kind that a rank notes: the first that it makes

_lock = threading.Lock()  # of all below
_file: int | None = None  # open until the process exits
_is_opening = False  # in which private.py calls os.mkdir
_read = 0  # bytes
_read_lines = 0
_noted: collections.Counter[str] = collections.Counter()  # calls of this rank, by kind
_calls: dict[str, _Calls] = collections.defaultdict(lambda: _Calls())  # by key


class _Calls:
    """What the ranks of this job have noted about one call."""

    def __init__(self) -> None:
        self.pending: collections.Counter[int] = collections.Counter()  # by process
        self.done: collections.Counter[int] = (
            collections.Counter()
        )  # by process, with repeated ones
        # Numbers of notes: this rank's last end, the one before its last call, and another rank's
        # last success.
        self.own_end = self.own_end_before = self.last_of_another = 0
        self.returned: str | None = None  # by that
        self.said: list[str] = []  # by say()

    def add(self, process: int, what: str, returned: str | None, number: int) -> None:
        own = process == os.getpid()
        if what == _SAYS:
            self.said.append(returned or "")
            return
        if what == _BEGINS:
            self.pending[process] += 1
            if own:
                self.own_end_before = self.own_end
            return
        self.pending[process] -= what != _REPEATS
        self.done[process] += what != _FAILS
        if own:
            self.own_end = number
        elif what == _SUCCEEDS:
            self.last_of_another, self.returned = number, returned

    def made_by_another(self) -> bool:
        """Since this rank's call before, or more often than by this rank."""
        return self.last_of_another > self.own_end_before or self.made_more_often()

    def made_more_often(self) -> bool:
        return max(self.done.values(), default=0) > self.done[os.getpid()]

    def may_be_made(self) -> bool:
        """Whether another rank is in this call."""
        return any(pending and process != os.getpid() for process, pending in self.pending.items())


def begin(key: str) -> bool:
    """Notes that this rank begins the call `key`, whose first word is its kind. Returns whether to
    note its end, too."""
    kind = key.partition(" ")[0]
    if _is_opening or _noted[kind] >= _MOST:
        return False
    _noted[kind] += 1
    return _note(key, _BEGINS)


def succeed(key: str, returned: str | None = None) -> None:
    _note(key, _SUCCEEDS, returned)


def fail(key: str) -> None:
    _note(key, _FAILS)


def repeat(key: str) -> str | None:
    """Notes that a failed call counts as another rank's, and returns what that has returned."""
    _note(key, _REPEATS)
    return _calls[key].returned


def say(key: str, value: str) -> list[str]:
    """What the ranks of this node have said under `key`, in order, the last of which is `value`."""
    if not _note(key, _SAYS, value):
        return [value]
    with _lock:
        _read_notes()
        return list(_calls[key].said)


def made_by_another(key: str) -> bool:
    """Whether another rank has made this call since this rank's call before, or more often than
    this rank. Waits for one that is in it. This rank is not, so no two ranks wait for each other.
    """
    return _settled(key).made_by_another()


def made_more_often(key: str) -> bool:
    """Whether another rank has made this call more often than this rank. Waits, too."""
    with contextlib.suppress(OSError):
        _open()
    return _file is not None and _settled(key).made_more_often()


def _settled(key: str) -> _Calls:
    """The calls `key`, once no other rank is in one."""
    until = time.monotonic() + _WAIT_SECONDS
    while True:
        with _lock:
            _read_notes()
            calls = _calls.get(key) or _Calls()
        if not calls.may_be_made() or time.monotonic() >= until:
            return calls
        time.sleep(_POLL_SECONDS)


def _note(key: str, what: str, returned: str | None = None) -> bool:
    """Appends to the file; False if there is none."""
    with contextlib.suppress(OSError):
        line = json.dumps([_job(), os.getpid(), key, what, returned]) + "\n"
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


def _read_notes() -> None:
    """Reads the notes of this job since the last call; under _lock."""
    global _read, _read_lines
    assert _file is not None
    data = os.pread(_file, os.fstat(_file).st_size - _read, _read)
    *lines, rest = data.split(b"\n")
    _read += len(data) - len(rest)
    for line in lines:
        job, process, key, what, returned = json.loads(line)
        _read_lines += 1
        if job == _job():
            _calls[key].add(process, what, returned, _read_lines)
