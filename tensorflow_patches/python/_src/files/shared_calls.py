"""Calls that make, rename or remove paths: the first rank of a node to reach a call makes it.

All ranks run the script's os.mkdir("run") on one disk. The first rank succeeds, and the others find
that the folder exists, although the script creates it once. Worse, a rank that comes late to
os.rename("log", "log.old") would rename the log that another rank has begun since. So a renaming or
removal that another rank of the node has made more often counts as made: what the late rank itself
has made for it, such as a temporary file, is dropped (_is_done). And any call
that fails because its result is there already succeeds, if another rank has made it since this
rank's previous one. The calls of other nodes are not known: there the error is raised, and
explanations.py explains it.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import inspect
import os
import shutil
import threading
import time
from typing import Any

from tensorflow.mpi._src.files import appends, journal, names, saves
from tensorflow.mpi._src.runtime import threads

_DONE_ERRNOS = (errno.EEXIST, errno.ENOENT, errno.ENOTEMPTY)
_DONE_CODES = (5, 6)  # of tf.errors: NOT_FOUND, ALREADY_EXISTS
_MAKES = ("mkdir", "create_dir_v2", "link", "symlink")  # these destroy nothing
_MOVES = ("rename", "replace", "rename_v2", "move")
_REMOVAL_SECONDS = 10.0  # of a tree that several ranks remove at once
_POLL_SECONDS = 0.001
_HIDDEN = ("/.tensorflow-mpi-", "/tensorflow-mpi-")  # our own files


class _Thread(threading.local):
    makes_all = False


_thread = _Thread()


def taken_as_done(function: Any) -> Any:
    """Wraps a function of os, shutil or tf.io.gfile whose first arguments are paths."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        name = function.__name__
        paths = _paths(args, kwargs) if saves.shared() and not _thread.makes_all else []
        key = " ".join([name, *paths])
        if not paths or not journal.begin(key):
            return function(*args, **kwargs)
        if name not in _MAKES and journal.is_behind(key) and _is_done(name, paths, key):
            journal.fail(key)  # ends the call that begin() has noted
            returned: Any = journal.repeat(key)
        else:
            try:
                returned = function(*args, **kwargs)
            except BaseException as error:
                journal.fail(key)
                if not _means_done(error) or not journal.made_by_another(key):
                    raise
                returned = journal.repeat(key)
            else:
                journal.succeed(key, returned if isinstance(returned, str) else None)
                if name in _MAKES or len(paths) > 1:
                    journal.note_made(paths[-1])
        if name not in _MAKES:
            for path in paths:
                appends.note_truncation(path)
        return returned

    return call


def by_accessor(function: Any) -> Any:
    """Wraps a function in the accessor of Python 3.10's pathlib."""
    return staticmethod(taken_as_done(function))


def removing(rmtree: Any) -> Any:
    """Wraps shutil.rmtree, which fails if another rank removes a file of the folder first."""

    @functools.wraps(rmtree)
    def remove(path: Any, *args: Any, **kwargs: Any) -> Any:
        until = time.monotonic() + _REMOVAL_SECONDS
        while True:
            try:
                return rmtree(path, *args, **kwargs)
            except OSError as error:
                disturbed = error.errno in _DONE_ERRNOS and saves.shared()
                if not disturbed or not os.path.lexists(path) or time.monotonic() >= until:
                    raise
            time.sleep(_POLL_SECONDS)

    return taken_as_done(remove)


def making_all() -> contextlib.AbstractContextManager[None]:
    """Inside, this thread makes all its calls, even if other ranks have made them already."""
    return threads.inside(_thread, makes_all=True)


def _is_done(name: str, paths: list[str], key: str) -> bool:
    """Whether this rank need not make a call that another rank has made more often.

    A move is needed if nothing is at its target. Otherwise what this rank has made since that one
    as the source, such as a temporary file, is an older version: it is removed here, without a
    note, except for what other ranks use.
    """
    if name in _MOVES and not os.path.lexists(paths[-1]):
        return False
    own = journal.made_since(journal.last_success(key), paths[0])
    for path in sorted(own, reverse=True):  # first what is in a folder
        is_folder = os.path.isdir(path) and not os.path.islink(path)
        with contextlib.suppress(OSError):  # a folder that is not empty
            if is_folder and not any(journal.is_behind(f"{make} {path}") for make in _MAKES):
                inspect.unwrap(os.rmdir)(path)
            elif not is_folder and not appends.has_text_of_others(path):
                inspect.unwrap(os.unlink)(path)
    return True


def _paths(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """The absolute paths of a call.

    None of them if they are relative to an open folder, or differ by rank, such as those of
    tempfile, which calls os.mkdir for a path that does not exist yet.
    """
    if any(kwargs.get(folder) is not None for folder in ("dir_fd", "src_dir_fd", "dst_dir_fd")):
        return []
    given = [*args, *(kwargs[one] for one in ("path", "name", "src", "dst") if one in kwargs)]
    paths = [
        os.path.abspath(os.fsdecode(one))
        for one in given
        if isinstance(one, (str, bytes, os.PathLike))
    ]
    differ = any(names.pattern(path) != path for path in paths)
    return [] if differ or any(one in path for path in paths for one in _HIDDEN) else paths


def _means_done(error: BaseException) -> bool:
    """Whether the call failed because its result is there already."""
    return (
        isinstance(error, shutil.Error)
        or getattr(error, "errno", None) in _DONE_ERRNOS
        or getattr(error, "error_code", None) in _DONE_CODES
    )
