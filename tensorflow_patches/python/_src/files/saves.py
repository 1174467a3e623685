"""Saves under TF_MPI_IO=rank0: only rank 0 writes files, and the other ranks wait for them.

A save on another rank returns once rank 0 has done the same save (waits.py). Rank 0 waits for
nobody; it posts the path that it has written. So a script that saves on rank 0 only does not block,
and if all ranks save, the file exists when the call returns, under each rank's own path (names.py).

tensorflow_files.py hooks this into TensorFlow's writers, keras_files.py into Keras's.
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

_IN_MEMORY = "ram://"  # TensorFlow's in-process file system, through which tf_keras copies models


class _Thread(threading.local):
    """The state of this thread."""

    writing = False  # rank 0 is inside a save; nested saves are not posted
    # On rank 0, inside posts_at_end: kinds and paths to post when the outer call ends.
    to_post: list[tuple[str, str]] | None = None
    others_wait = True  # whether other ranks wait for rank 0's saves
    section: str | None = None  # the section that this thread is in; see passing()
    posted = False  # whether rank 0 has posted a save in that section
    own = False  # whether every rank writes its own files


_thread = _Thread()


def install() -> None:
    """Called once, when TensorFlow's libraries are loaded."""
    engine.when_forked(shared.cache_clear)  # a forked child writes its own files
    engine.when_left_to_script(shared.cache_clear)
    if shared():
        engine.after_the_end(names.remove_all)


@functools.cache
def shared() -> bool:
    """Whether the ranks share one set of files."""
    return group.size > 1 and bool(config.get("TF_MPI_IO") == "rank0")


def left_to_rank_0() -> bool:
    """Whether this rank leaves saves by TensorFlow and Keras to rank 0."""
    presence.follow()
    return group.rank != 0 and shared() and not _thread.own


def writing() -> bool:
    """Whether this is rank 0, inside a save."""
    return _thread.writing


def on_rank_0(
    function: Callable[..., Any],
    path: Callable[..., Any],
    result: Callable[..., Any] = lambda *args, **kwargs: None,
) -> Callable[..., Any]:
    """Wraps `function`, which writes a file or folder, so that only rank 0 runs it.

    Args:
      function: the writer.
      path: called with its arguments; returns the path that it writes: a str, bytes, os.PathLike or
        eager string tensor; None if ranks cannot wait for it. For anything else, such as an open
        file, every rank runs `function`.
      result: called with its arguments on the other ranks, once rank 0 has written; returns what
        `function` would return.

    On the other ranks, the wrapper raises the exceptions of `waits.wait`.
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
            with threads.inside(_thread, own=True):  # other processes cannot see these files
                return function(*args, **kwargs)
        if left_to_rank_0():
            if key is None or not _thread.others_wait or waits.wait(kind, key, _thread.section):
                return result(*args, **kwargs)
            # Rank 0 died before it saved this, and this rank is now rank 0.
        with _posting(kind, key):
            return function(*args, **kwargs)

    return save


def posts_at_end(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `function`, which saves and then writes more: rank 0 posts these saves at its end."""
    if not shared() or group.rank != 0:
        return function

    @functools.wraps(function)
    def outer(*args: Any, **kwargs: Any) -> Any:
        if _thread.to_post is not None:
            return function(*args, **kwargs)
        _thread.to_post = []
        failure = ""
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            failure = failures.describe(error)
            raise
        finally:
            pending, _thread.to_post = _thread.to_post, None
            for kind, key in pending:
                _post(failure, kind, key)

    return outer


def without_waiting() -> contextlib.AbstractContextManager[None]:
    """For saves that each rank does at its own time, such as every few seconds."""
    return threads.inside(_thread, others_wait=False)


@contextlib.contextmanager
def passing(section: str) -> Iterator[None]:
    """Marks a section that all ranks pass. If rank 0 has saved something inside, saves of other
    ranks inside stop waiting when rank 0 leaves it.

    So callbacks of fit may save under a name that differs by rank, such as one with the time.

    Args:
      section: its name, used once.
    """
    before = _thread.section, _thread.posted
    _thread.section, _thread.posted = section, False
    try:
        yield
    finally:
        if _thread.posted:
            waits.post_section_left(section)
        _thread.section, _thread.posted = before


def _key(path: Any) -> str | None:
    """The path as text, the same for one file on all ranks; None if it is not a path."""
    if hasattr(path, "_numpy_internal"):
        path = path.numpy()
    if not isinstance(path, (str, bytes, os.PathLike)):
        return None
    text = os.fsdecode(path).replace("\n", "\\n")  # posts separate fields by line breaks
    return text if "://" in text else os.path.abspath(text)


@contextlib.contextmanager
def _posting(kind: str, key: str | None) -> Iterator[None]:
    """Wraps rank 0's writing of `key`, and posts it afterwards."""
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
            if not failure and _thread.to_post is not None:
                _thread.to_post.append((kind, key))
            else:
                _post(failure, kind, key)


def _post(failure: str, kind: str, key: str) -> None:
    if not shared():
        return  # a forked child writes its own files
    _thread.posted = True
    waits.post_save(failure, kind if _thread.others_wait else waits.UNSYNCHRONIZED, key)


def at_end(why: str | None) -> None:
    """Called at exit, with `why` after a failure: rank 0 posts that it will save nothing more."""
    if shared() and group.rank == 0:
        waits.post_end(why)
