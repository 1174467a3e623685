"""Calls that make, rename or remove paths: one that another rank has already made is taken as done.

All ranks run the script's os.mkdir("run") on one disk. The first rank succeeds, and the others find
that the folder exists, although the script creates it once. So a call that fails because its result
is there already succeeds, if another rank of the node has made the same call more often than this
rank, or since this rank's last one. The calls of other nodes are not known: there the error is
raised, and explanations.py explains it.
"""

from __future__ import annotations

import errno
import functools
import os
import shutil
import time
from typing import Any

from tensorflow.mpi._src.files import journal, names, saves

_MADE = (errno.EEXIST, errno.ENOENT, errno.ENOTEMPTY)
_MADE_CODES = (5, 6)  # of tf.errors: NOT_FOUND, ALREADY_EXISTS
_REMOVAL_SECONDS = 10.0  # of a tree that several ranks remove at once


def taken_as_done(function: Any) -> Any:
    """Wraps a function of os, shutil or tf.io.gfile whose first arguments are paths."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        key = _key(function.__name__, args, kwargs) if saves.shared() else None
        if key is None or not journal.begin(key):
            return function(*args, **kwargs)
        try:
            returned = function(*args, **kwargs)
        except BaseException as error:
            journal.fail(key)
            if not _is_made(error) or not journal.made_by_another(key):
                raise
            return journal.repeat(key)
        journal.succeed(key, returned if isinstance(returned, str) else None)
        return returned

    return call


def removing(rmtree: Any) -> Any:
    """Wraps shutil.rmtree, which fails if another rank removes a file of the folder first."""

    @functools.wraps(rmtree)
    def remove(path: Any, *args: Any, **kwargs: Any) -> Any:
        until = time.monotonic() + _REMOVAL_SECONDS
        while True:
            try:
                return rmtree(path, *args, **kwargs)
            except OSError as error:
                gone = error.errno in _MADE and saves.shared()
                if not gone or not os.path.lexists(path) or time.monotonic() >= until:
                    raise

    return taken_as_done(remove)


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


def _is_made(error: BaseException) -> bool:
    """Whether the call failed because its result is there already."""
    return (
        isinstance(error, shutil.Error)
        or getattr(error, "errno", None) in _MADE
        or getattr(error, "error_code", None) in _MADE_CODES
    )
