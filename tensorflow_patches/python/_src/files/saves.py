"""Rank 0's files: with TF_MPI_IO=rank0 the other ranks write none, and wait for rank 0's.

A save on another rank returns once rank 0 has made the same save. Rank 0 posts the path of what it
has written, which waits for nobody, and a rank that saves a path for the k-th time waits until rank
0 has posted it k times. So a script that saves on rank 0 only holds up no rank, and where all ranks
save, the file is there when the call returns.

tensorflow_files.py hooks it into TensorFlow's own writers, keras_files.py into Keras's.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from tensorflow.mpi import config, errors
from tensorflow.mpi._src.runtime import c_api, engine, hooks, log

# Keys of posts. A path follows "saved" and "failed", a place "left".
_SAVED, _FAILED, _LEFT, _ANY, _ENDED = "saved ", "failed ", "left ", "saves", "the script has ended"

_POLL_SECONDS = (0.001, 0.02)  # the first nap of a wait, and the longest


class _Thread(threading.local):
    """What this thread is doing."""

    writing = False  # rank 0 is inside a save; what that calls in turn is not told
    to_tell: list[str] | None = None  # rank 0: posts that the end of an outer call will make
    waits = True  # another rank waits for rank 0's saves
    place: str | None = None  # where all ranks pass
    told = False  # rank 0 has told of a save at that place


_thread = _Thread()
_said_elsewhere = False
_lock = threading.Lock()
_saves: collections.Counter[str] = collections.Counter()  # this rank's, by path; under _lock
_failures: collections.Counter[str] = collections.Counter()  # of rank 0, seen; under _lock


def install() -> None:
    """Called once, when TensorFlow's libraries are loaded."""
    engine.when_forked(shared.cache_clear)  # a forked child writes its own files
    hooks.fill(
        left_to_rank_0=left_to_rank_0,
        tells_at_end=tells_at_end,
        saves_without_waiting=without_waiting,
    )


@functools.cache
def shared() -> bool:
    """Whether the ranks share one set of files, which rank 0 writes."""
    return hooks.size > 1 and bool(config.get("TF_MPI_IO") == "rank0")


def left_to_rank_0() -> bool:
    """True on a rank that writes no files."""
    return hooks.rank != 0 and shared()


def saves(
    function: Callable[..., Any],
    path: Callable[..., Any],
    result: Callable[..., Any] = lambda *args, **kwargs: None,
) -> Callable[..., Any]:
    """Wraps `function`, which writes a file or folder: rank 0 alone runs it.

    Args:
      function: the writer.
      path: called with its arguments; returns what it writes: a str, bytes, os.PathLike or eager
        string tensor. None for what cannot be waited for. With anything else, an open file, the
        script has a place of its own on each rank, and `function` runs.
      result: called with its arguments on the other ranks, once rank 0 has written; returns what
        `function` would.

    The wrapper raises, on the other ranks, what `wait` raises.
    """
    if not shared():
        return function

    @functools.wraps(function)
    def save(*args: Any, **kwargs: Any) -> Any:
        if _thread.writing:
            return function(*args, **kwargs)
        where = path(*args, **kwargs)
        key = _key(where)
        if key is None and where is not None:
            return function(*args, **kwargs)
        if left_to_rank_0():
            if key is not None:
                wait(key)
            return result(*args, **kwargs)
        with _told(key):
            return function(*args, **kwargs)

    return save


def tells_at_end(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `function`, which saves and then writes more: rank 0 tells of the saves at its end."""
    if not shared() or hooks.rank != 0:
        return function

    @functools.wraps(function)
    def outer(*args: Any, **kwargs: Any) -> Any:
        if _thread.to_tell is not None:
            return function(*args, **kwargs)
        _thread.to_tell = []
        told = _FAILED
        try:
            result = function(*args, **kwargs)
            told = _SAVED
            return result
        finally:
            keys, _thread.to_tell = _thread.to_tell, None
            for key in keys:
                _post(told, key)

    return outer


@contextlib.contextmanager
def without_waiting() -> Iterator[None]:
    """For saves that each rank makes at a time of its own, as those every so many seconds."""
    before, _thread.waits = _thread.waits, False
    try:
        yield
    finally:
        _thread.waits = before


@contextlib.contextmanager
def passing(place: str) -> Iterator[None]:
    """All ranks pass `place`, a name used once: no save inside waits longer than rank 0 is there.

    So callbacks of a fit may save under a name that differs by rank, as one made from the time.
    """
    before = _thread.place, _thread.told
    _thread.place, _thread.told = place, False
    try:
        yield
    finally:
        if _thread.told:
            _post(_LEFT, place)
        _thread.place, _thread.told = before


def _key(path: Any) -> str | None:
    """The same text for one file on all ranks; None for what is no path."""
    if hasattr(path, "_numpy_internal"):
        path = path.numpy()
    if not isinstance(path, (str, bytes, os.PathLike)):
        return None
    text = os.fsdecode(path)
    return text if "://" in text else os.path.abspath(text)


@contextlib.contextmanager
def _told(key: str | None) -> Iterator[None]:
    """Rank 0 writes `key`; afterwards the other ranks hear of it."""
    _thread.writing = True
    told = _FAILED
    try:
        yield
        told = _SAVED
    finally:
        _thread.writing = False
        if key is not None:
            if told == _SAVED and _thread.to_tell is not None:
                _thread.to_tell.append(key)
            else:
                _post(told, key)


def _post(what: str, key: str) -> None:
    _thread.told = True
    c_api.load().tfmpi_post((what + key).encode())
    if what == _SAVED:
        c_api.load().tfmpi_post(_ANY.encode())


def rank_0_ends() -> None:
    """At exit: what rank 0 has not saved by now it never will."""
    if shared() and hooks.rank == 0:
        _post(_ENDED, "")


def _posted(what: str, key: str = "") -> int:
    return int(c_api.load().tfmpi_posted((what + key).encode()))


def wait(key: str) -> None:
    """Waits until rank 0 has saved `key` as often as this rank has, this time included.

    Raises:
      tf.errors.DeadlineExceededError: it has not within TF_MPI_STALL_TIMEOUT.
      tf.errors.UnavailableError: its save has failed, or its script has ended without it.
    """
    if not _thread.waits:
        return
    with _lock:
        _saves[key] += 1
        number = _saves[key]
    warning, timeout = config.get("TF_MPI_STALL_WARNING"), config.get("TF_MPI_STALL_TIMEOUT")
    start = time.monotonic()
    next_warning = warning
    nap = _POLL_SECONDS[0]
    while not _done(key, number, _thread.place):
        waited = time.monotonic() - start
        if timeout and waited >= timeout:
            raise errors.error_from_code(errors.DEADLINE_EXCEEDED, _waiting(key, number, waited))
        if warning and waited >= next_warning:
            next_warning += warning
            log.say(_waiting(key, number, waited))
        time.sleep(nap)
        nap = min(2 * nap, _POLL_SECONDS[1])


def _done(key: str, number: int, place: str | None) -> bool:
    ended = _posted(_ENDED) > 0  # both are read first: they are posted last
    left = place is not None and _posted(_LEFT, place) > 0
    failures = _posted(_FAILED, key)
    with _lock:
        failed = failures > _failures[key]
        _failures[key] += failed
    if failed:
        raise errors.error_from_code(
            errors.UNAVAILABLE,
            f"rank 0 could not save '{key}', which rank {hooks.rank} saves too: see the error of "
            "rank 0",
        )
    if _posted(_SAVED, key) + failures >= number:
        return True
    if left:
        _say_elsewhere(key)
        return True
    if ended:
        raise errors.error_from_code(
            errors.UNAVAILABLE,
            f"rank {hooks.rank} saves '{key}', but rank 0's script has ended without that. "
            + _WAY_OUT,
        )
    return False


def _say_elsewhere(key: str) -> None:
    global _said_elsewhere
    if not _said_elsewhere:
        _said_elsewhere = True
        log.say(
            f"rank 0 saves under another path than '{key}', which will not be there; a path made "
            "from the time or at random differs by rank"
        )


_WAY_OUT = (
    "Save on all ranks under one path (a name made from the time, at random or in a temporary "
    "folder differs by rank) or on rank 0 only; or set TF_MPI_IO=all, and each rank writes its own "
    "files"
)


def _waiting(key: str, number: int, seconds: float) -> str:
    others = _posted(_ANY) - _posted(_SAVED, key)
    return (
        f"rank {hooks.rank} has waited {seconds:.0f} s for rank 0 to save '{key}' (time "
        f"{number} for this path; rank 0 has saved it {_posted(_SAVED, key)} times, other paths "
        f"{others} times). {_WAY_OUT}"
    )
