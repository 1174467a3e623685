"""A journal of the calls by which the ranks of a node change the script's files, in order.

Each rank notes its calls in a file that all jobs of a user on a node share: before the call and,
with the result, after it. So a rank knows what another has done, and which calls are still running.
The calls of other nodes are not known. Ranks also publish values to one another through the file.

The ranks' calls are paired by their numbers. A script may skip a call on some ranks, for example if
it looks first whether a file exists, which another rank has just made. So whenever all ranks wait
for one another, a rank that has made fewer calls continues with the number of the others.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import json
import os
import stat
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from tensorflow.mpi import config
from tensorflow.mpi._src.files import names, private
from tensorflow.mpi._src.messaging import collectives, control_plane
from tensorflow.mpi._src.runtime import c_api, group

_BEGINS, _SUCCEEDS, _FAILS, _REPEATS = "begins", "succeeds", "fails", "repeats"
_PUBLISHES = "publishes"
_WAIT_SECONDS = 10.0  # for another rank's call to end, such as a removal of many files
_POLL_SECONDS = 0.001
_MAX_CALLS = 20_000  # of a kind: a rank does not note later calls

_job = ""  # identifies this job's notes; empty: there is no journal
_own = 0  # this rank's number at the start, which stays when survivors get new ones
_has_all_ranks = False
_noted: collections.Counter[str] = collections.Counter()  # calls of this rank, by kind
_lstat = os.lstat  # of Python: atomic.seeing replaces it, and takes a lock of the file
# Guards what follows, and appends.py. Reentrant: a finalizer, which may run anywhere, may close a
# file.
lock = threading.RLock()
_file: int | None = None  # open until the process exits
_read = 0  # bytes of the file read so far
_read_lines = 0
_exchanged = 0  # position() when this rank has last begun to wait for all ranks
_calls: dict[str, _Calls] = collections.defaultdict(lambda: _Calls())  # by key
_made: dict[str, _Made] = {}  # what this rank has made, by path
_used: dict[str, int] = {}  # inodes of what this rank has made, opened or found made, by path


class _Made(NamedTuple):
    key: str  # of the call
    identity: tuple[int, ...]  # of what it has made
    position: int  # position() after that


class _Calls:
    """What the ranks of this job have noted about one call."""

    def __init__(self) -> None:
        self.running: collections.Counter[int] = collections.Counter()  # by rank
        self.done: collections.Counter[int] = collections.Counter()  # by rank; see count()
        self._counted = 0  # _exchanged at the last count()
        # Line numbers: of this rank's last end; of the end before its latest call; of the last
        # success of another rank.
        self.own_end = self.own_end_before = self.last_of_another = 0
        self.returned: str | None = None  # by that success
        self.published: list[str] = []  # by publish()
        self.exchanges = 0  # what the latest of these ranks had started (collectives) before that

    def add(self, rank: int, what: str, returned: str | None, count: int, number: int) -> None:
        """Adds a note of `rank`, in line `number`. `returned` may also be a published value, and
        `count` then the number of exchanges."""
        self.count()
        own = rank == _own
        if what == _PUBLISHES:
            self.published.append(returned or "")
            self.exchanges = max(self.exchanges, count)
            return
        if what == _BEGINS:
            self.running[rank] += 1
            if own:
                self.own_end_before = self.own_end
            return
        self.running[rank] -= what != _REPEATS  # a repetition follows the end of a failed call
        self.done[rank] = max(self.done[rank], count)
        if own:
            self.own_end = number
        elif what == _SUCCEEDS:
            self.last_of_another, self.returned = number, returned

    def count(self) -> int:
        """The number of this rank's calls, including those taken as done, and those that it had
        skipped when it last began to wait for all ranks."""
        if self._counted < _exchanged:  # every note counted so far is older than that
            self._counted = _exchanged
            self.done[_own] = max(self.done.values(), default=0)
        return self.done[_own]

    def is_behind(self) -> bool:
        own = self.count()
        return max(self.done.values(), default=0) > own

    def made_by_another(self) -> bool:
        return self.last_of_another > self.own_end_before or self.is_behind()

    def another_is_running(self) -> bool:
        return any(running > 0 and rank != _own for rank, running in self.running.items())


def install() -> None:
    """Called once, when the engine has started. Collective."""
    global _job, _own, _has_all_ranks
    file: tuple[int, ...] = (0, 0)
    with contextlib.suppress(OSError):
        file = _identity(os.fstat(_open()))[:2]
    everyone = control_plane.headers(
        "the journal of file calls", [os.urandom(8).hex(), os.getpid(), file]
    )
    _job, _own = everyone[0][0], group.rank
    files = [tuple(theirs) for _, _, theirs in everyone]
    _has_all_ranks = c_api.topology()[4] == 1 and files == [file] * len(files) and any(file)
    names.note_process_numbers([number for _, number, _ in everyone])
    collectives.before_exchange.append(_note_exchange)


def _note_exchange() -> None:
    """Called when this rank begins to wait for all ranks."""
    global _exchanged
    if _file is not None:
        _exchanged = position()


def has_all_ranks() -> bool:
    """Whether all ranks use this journal, so that their calls are known."""
    return _has_all_ranks


def begin(key: str) -> bool:
    """Notes that this rank begins the call `key`, whose first word is its kind. Returns whether to
    note its end, too."""
    kind = key.partition(" ")[0]
    if _noted[kind] >= _MAX_CALLS:
        return False
    _noted[kind] += 1
    return _note(key, _BEGINS)


def succeed(key: str, returned: str | None = None, number: int | None = None) -> None:
    """number: which of this rank's calls ends, if several are made at a time."""
    _end(key, _SUCCEEDS, returned, number)


def fail(key: str) -> None:
    _end(key, _FAILS)


def repeat(key: str) -> str | None:
    """Notes that a call is taken as done; returns what the other rank's call returned."""
    _end(key, _REPEATS)
    return returned(key)


def returned(key: str) -> str | None:
    """What another rank's call has returned that was the last to succeed."""
    with lock:
        return _calls[key].returned if key in _calls else None


def count(key: str) -> int:
    """See _Calls.count."""
    return _count(key, lambda calls: calls.count())


def most(key: str) -> int:
    """The most calls of a rank, as of count()."""
    return _count(key, lambda calls: max(calls.done.values(), default=0))


def _count(key: str, counted: Callable[[_Calls], int]) -> int:
    if _job:
        with contextlib.suppress(OSError), lock:
            _open()
            _read_notes()
            return counted(_calls[key]) if key in _calls else 0
    return 0


def publish(key: str, value: str) -> list[str]:
    """Publishes a value under `key`; returns all values that this node's ranks have published under
    it, in order."""
    if not _note(key, _PUBLISHES, value, collectives.last_started):
        return [value]
    with lock:
        _read_notes()
        return list(_calls[key].published)


def times_published(key: str) -> int:
    """How often this node's ranks have published a value under `key`."""
    if not _job:
        return 0
    with contextlib.suppress(OSError), lock:
        _open()
        _read_notes()
        return len(_calls[key].published) if key in _calls else 0
    return 0


def is_behind(key: str) -> bool:
    """Whether another rank has made this call more often than this rank."""
    if not _job:
        return False
    with contextlib.suppress(OSError), lock:
        _open()
        _read_notes()
        return key in _calls and _calls[key].is_behind()
    return False


def last_success(key: str) -> int:
    """The position at which another rank has last made this call; 0: never."""
    with lock:
        return _calls[key].last_of_another if key in _calls else 0


def position() -> int:
    """The current position in the journal: its number of lines, including those of other jobs."""
    with lock:
        if _file is not None:
            _read_notes()
        return _read_lines


def note_made(key: str, path: str, status: os.stat_result) -> None:
    """Notes that this rank has made, or written, the absolute path `path` by the call `key`.

    status: of what it has made there, not of what another rank may have put there since.
    """
    _made[path] = _Made(key, _identity(status), position())


def note_begun(path: str, status: os.stat_result, kind: str = "begun") -> None:
    """Notes that this rank has created or replaced the file or folder `path`; status: of the new
    one. Call inside appends.alone_on_node()."""
    real = _real(path)
    publish(f"{kind} {status.st_ino} {real}", "")
    _used[real] = status.st_ino


def times_begun(path: str, status: os.stat_result) -> int:
    """How often ranks of this node have begun the file `path`."""
    return times_published(f"begun {status.st_ino} {_real(path)}")


def note_used(path: str) -> None:
    """Notes that this rank knows the file or folder that is now at `path`."""
    real = _real(path)
    inode, known = _begun_in(real)
    if known:  # else is_ahead() need not know
        _used[real] = inode


def is_ahead(path: str) -> bool:
    """Whether another rank, which is ahead of this one, has begun the file or folder at `path`.

    That is so if it was begun since all ranks have last waited for one another, and this rank has
    used neither it nor anything in it.
    """
    real = _real(path)
    inode, known = _begun_in(real)
    if not known or _used.get(real) == inode or max(known) < collectives.last_ended:
        return False
    for one in list(_used):
        if one.startswith(real + os.sep):
            with contextlib.suppress(OSError):
                if _lstat(one).st_ino == _used[one]:
                    return False
    return True


def _begun_in(real: str) -> tuple[int, list[int]]:
    """The inode at `real`, and _Calls.exchanges of the notes that a rank has begun or made it."""
    if not _job:
        return 0, []
    with contextlib.suppress(OSError), lock:
        inode = _lstat(real).st_ino
        _open()
        _read_notes()
        calls = [_calls.get(f"{kind} {inode} {real}") for kind in ("begun", "made")]
        return inode, [one.exchanges for one in calls if one is not None]
    return 0, []


def _real(path: str) -> str:
    """`path`, which may be a symbolic link itself, with its folder's real path."""
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def made_since(since: int, path: str) -> list[str]:
    """What this rank has made as `path`, or in that folder, after position `since`.

    Leaves out what is gone, and what another rank has made more often: that rank may have found
    this rank's file or folder, and use it.
    """
    made = []
    for one, (key, identity, made_at) in list(_made.items()):
        if made_at > since and (one + os.sep).startswith(path + os.sep) and not is_behind(key):
            with contextlib.suppress(OSError):
                made += [one] if _identity(os.lstat(one)) == identity else []
    return made


def _identity(status: os.stat_result) -> tuple[int, ...]:
    """For a file with its time, because a new file may get the inode of one that was removed."""
    written = status.st_mtime_ns if stat.S_ISREG(status.st_mode) else 0
    return status.st_dev, status.st_ino, written


def is_running(key: str) -> bool:
    """Whether another rank is in this call."""
    with lock:
        if _file is None:
            return False
        _read_notes()
        return _calls[key].another_is_running()


def made_by_another(key: str) -> bool:
    """Whether another rank has made this call since this rank's previous one, or more often.

    Call after fail(). Waits, up to _WAIT_SECONDS, while another rank is in the call. This rank no
    longer is, so two ranks never wait for each other.
    """
    until = time.monotonic() + _WAIT_SECONDS
    while True:
        with lock:
            _read_notes()
            calls = _calls[key]
            if time.monotonic() >= until:
                calls.running.clear()  # a rank has died in the call: later calls need not wait
            if not calls.another_is_running():
                return calls.made_by_another()
        time.sleep(_POLL_SECONDS)


def _end(key: str, what: str, returned: str | None = None, number: int | None = None) -> None:
    with contextlib.suppress(OSError), lock:
        if _job:
            _open()
            _read_notes()
            _note(key, what, returned, number or _calls[key].count() + (what != _FAILS))


def _note(key: str, what: str, returned: str | None = None, count: int = 0) -> bool:
    """Appends to the file; returns whether it could. count: see _Calls.add."""
    if not _job:
        return False
    with contextlib.suppress(OSError):
        line = json.dumps([_job, _own, key, what, returned, count]) + "\n"
        return os.write(_open(), line.encode()) == len(line)
    return False


def _open() -> int:
    """Opens the shared file once; empties it if no other process has it open."""
    global _file
    if _file is not None:  # without the lock, which another thread may hold for long
        return _file
    with lock:
        if _file is None:
            file = private.open_file(f"calls-{config.node_name()}", os.O_APPEND)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.ftruncate(file, 0)
            with contextlib.suppress(BlockingIOError):  # a stopped rank may hold the lock
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            _file = file
        return _file


def _read_notes() -> None:
    """Counts the notes of this job since the last call; under lock."""
    global _read, _read_lines
    assert _file is not None
    data = os.pread(_file, max(0, os.fstat(_file).st_size - _read), _read)
    *lines, rest = data.split(b"\n")
    _read += len(data) - len(rest)
    for line in lines:
        _read_lines += 1
        with contextlib.suppress(ValueError):  # a line that a full disk has cut off
            job, rank, key, what, returned, count = json.loads(line)
            if job == _job:
                _calls[key].add(rank, what, returned, count, _read_lines)
