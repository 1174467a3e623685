"""Rank 0's files: with TF_MPI_IO=rank0 the other ranks write none, and wait for rank 0's.

A save on another rank returns once rank 0 has made the same save (waits.py). Rank 0 posts the path
of what it has written, which waits for nobody. So a script that saves on rank 0 only holds up no
rank, and where all ranks save, the file is there when the call returns, under the name that each
rank has for it (names.py).

tensorflow_files.py hooks it into TensorFlow's own writers, keras_files.py into Keras's.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tensorflow.mpi import config
from tensorflow.mpi._src.files import failures, names, waits
from tensorflow.mpi._src.lifecycle import engine
from tensorflow.mpi._src.presence import presence
from tensorflow.mpi._src.runtime import group, threads

_IN_MEMORY = "ram://"  # of the process: TensorFlow's file system, in which tf_keras copies models


class _Thread(threading.local):
    """What this thread is doing."""

    writing = False  # rank 0 is inside a save; what that calls in turn is not told
    # On rank 0: kinds and paths of posts that the end of an outer call will make.
    to_tell: list[tuple[str, str]] | None = None
    waits = True  # another rank waits for rank 0's saves
    place: str | None = None  # where all ranks pass
    posted = False  # rank 0 has posted a save at that place
    own = False  # what is written is of this process alone


_thread = _Thread()


def install() -> None:
    """Called once, when TensorFlow's libraries are loaded."""
    engine.when_forked(shared.cache_clear)  # a forked child writes its own files
    engine.when_left_to_script(shared.cache_clear)
    if shared():
        engine.after_the_end(names.remove_all)


@functools.cache
def shared() -> bool:
    """Whether the ranks share one set of files, which rank 0 writes."""
    return group.size > 1 and bool(config.get("TF_MPI_IO") == "rank0")


def left_to_rank_0() -> bool:
    """True on a rank that writes no files."""
    presence.follow()
    return group.rank != 0 and shared() and not _thread.own


def writing() -> bool:
    """Whether rank 0 is inside a save here: it alone writes."""
    return _thread.writing


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

    The wrapper raises, on the other ranks, what `waits.wait` raises.
    """
    if not shared():
        return function
    kind = str(getattr(function, "__qualname__", function))

    @functools.wraps(function)
    def save(*args: Any, **kwargs: Any) -> Any:
        if _thread.writing:
            return function(*args, **kwargs)
        where = path(*args, **kwargs)
        key = _key(where)
        if key is None and where is not None:
            return function(*args, **kwargs)
        if key is not None and key.startswith(_IN_MEMORY):
            with _own_files():
                return function(*args, **kwargs)
        if left_to_rank_0():
            if key is None or _wait(kind, key):
                return result(*args, **kwargs)
            # Rank 0 has died before it had saved this, and this rank is rank 0 now.
        with _posting(kind, key):
            return function(*args, **kwargs)

    return save


def tells_at_end(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `function`, which saves and then writes more: rank 0 tells of the saves at its end."""
    if not shared() or group.rank != 0:
        return function

    @functools.wraps(function)
    def outer(*args: Any, **kwargs: Any) -> Any:
        if _thread.to_tell is not None:
            return function(*args, **kwargs)
        _thread.to_tell = []
        failure = ""
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            failure = failures.describe(error)
            raise
        finally:
            pending, _thread.to_tell = _thread.to_tell, None
            for kind, key in pending:
                _post(failure, kind, key)

    return outer


def without_waiting() -> contextlib.AbstractContextManager[None]:
    """For saves that each rank makes at a time of its own, as those every so many seconds."""
    return threads.inside(_thread, waits=False)


@contextlib.contextmanager
def passing(place: str) -> Iterator[None]:
    """All ranks pass `place`, a name used once: no save inside waits longer than rank 0 is there.

    So callbacks of a fit may save under a name that differs by rank, as one made from the time.
    """
    before = _thread.place, _thread.posted
    _thread.place, _thread.posted = place, False
    try:
        yield
    finally:
        if _thread.posted:
            waits.post_unavailable(place)
        _thread.place, _thread.posted = before


def _own_files() -> contextlib.AbstractContextManager[None]:
    """Files that no other process can see: every rank writes them."""
    return threads.inside(_thread, own=True)


def _key(path: Any) -> str | None:
    """The same text for one file on all ranks; None for what is no path."""
    if hasattr(path, "_numpy_internal"):
        path = path.numpy()
    if not isinstance(path, (str, bytes, os.PathLike)):
        return None
    text = os.fsdecode(path).replace("\n", "\\n")  # a post says more after a line break
    return text if "://" in text else os.path.abspath(text)


@contextlib.contextmanager
def _posting(kind: str, key: str | None) -> Iterator[None]:
    """Rank 0 writes `key`; afterwards the other ranks hear of it."""
    _thread.writing = True
    failure = ""
    try:
        yield
    except BaseException as error:
        failure = failures.describe(error)
        raise
    finally:
        _thread.writing = False
        if key is not None:
            if not failure and _thread.to_tell is not None:
                _thread.to_tell.append((kind, key))
            else:
                _post(failure, kind, key)


def _wait(kind: str, key: str) -> bool:
    """False: it is this rank's to save."""
    return not _thread.waits or waits.wait(kind, key, _thread.place)


def _post(failure: str, kind: str, key: str) -> None:
    if not shared():
        return  # a forked child, which writes its own files
    _thread.posted = True
    waits.post_save(failure, kind if _thread.waits else waits.BY_ITS_CLOCK, key)


def at_end(why: str | None) -> None:
    """At exit, as a failure if `why` is given: what rank 0 has not saved by now it never will."""
    if shared() and group.rank == 0:
        waits.post_end(why)
