"""Calls that make, rename or remove paths: the first rank of a node to reach a call makes it.

All ranks run the script's os.mkdir("run") on one disk. The first rank succeeds, and the others find
that the folder exists, although the script creates it once. Worse, a rank that comes late to
os.rename("log", "log.old") would rename the log that another rank has begun since. So a renaming or
removal that another rank of the node has made more often than this one counts as made: the late
rank does not make it, and drops what it has prepared for it, such as a temporary file (_is_done).
Nor does it rename or remove what a rank that is ahead has begun (journal.is_ahead): `if
exists("run"): rmtree("run")` would remove what the other has written after its `makedirs("run")`.
And any call that fails because its result exists counts as successful, if another rank has made it
since this rank's previous one. Calls on other nodes are not known: then the error is raised, and
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

from tensorflow.mpi._src.files import appends, atomic, journal, names, saves, versions
from tensorflow.mpi._src.runtime import threads

_DONE_ERRNOS = (errno.EEXIST, errno.ENOENT, errno.ENOTEMPTY)
_DONE_CODES = (5, 6)  # of tf.errors: NOT_FOUND, ALREADY_EXISTS
# Names of functions. Those of _MAKES destroy nothing; copy_v2 is tf.io.gfile's, without overwrite.
_MAKES = ("mkdir", "create_dir_v2", "link", "symlink", "copy_v2")
_MOVES = ("rename", "replace", "rename_v2", "move")
# After these, which return nothing, the file or folder is no longer at its path.
_TAKES_AWAY = (
    *("rmdir", "remove", "unlink", "rmtree", "delete_file_v2", "delete_recursively_v2"),
    *("rename", "replace", "rename_v2"),
)
_LONG = ("move", "rmtree", "delete_recursively_v2", "copy_v2")
_REMOVAL_SECONDS = 10.0  # for retries, if several ranks remove a tree at once
_POLL_SECONDS = 0.001
_HIDDEN = ("/.tensorflow-mpi-", "/tensorflow-mpi-")  # parts of the paths of our own files


class _Thread(threading.local):
    makes_all = False


_thread = _Thread()


def taken_as_done(function: Any) -> Any:
    """Wraps a function of os, shutil or tf.io.gfile whose first arguments are paths."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        name = function.__name__
        paths = _paths(args, kwargs) if saves.shared() else []
        atomic.show(paths)
        # No other rank makes a call with a path that differs by rank, such as tempfile's.
        differs = [names.pattern(path) != path for path in paths]
        if name in _MOVES and differs == [True, False] and not _thread.makes_all:
            return _move_own(function, paths, args, kwargs)
        if _thread.makes_all or any(differs):
            paths = []
        key = " ".join([name, *paths])
        if not paths or not journal.begin(key):
            return function(*args, **kwargs)
        try:
            with _alone_for(name):  # until the journal has the call
                if (
                    name in _TAKES_AWAY
                    and not journal.is_behind(key)
                    and journal.is_ahead(paths[0])
                ):
                    journal.fail(key)
                    return None
                if name not in _MAKES and journal.is_behind(key) and _is_done(name, paths, key):
                    journal.fail(key)  # ends the call that begin() has noted
                    returned: Any = _repeated(key, paths, args)
                else:
                    returned = _made(function, key, paths, args, kwargs)
                    journal.succeed(key, _path_of(returned))
        except BaseException as error:
            journal.fail(key)
            if not _means_done(error) or not journal.made_by_another(key):
                raise
            returned = _repeated(key, paths, args)
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


def making_folders(make: Any) -> Any:
    """Wraps file_io.recursive_create_dir_v2, which also succeeds if the folder is there."""

    def recursive_create_dir_v2(path: Any) -> None:
        if not saves.shared():
            return make(path)
        folder = os.path.abspath(os.fsdecode(path))
        with appends.alone_on_node():
            is_new = not os.path.exists(folder)
            make(path)
            if is_new and os.path.exists(folder):
                journal.note_begun(folder, os.stat(folder), "made")
            journal.note_used(folder)

    return recursive_create_dir_v2


def making_all() -> contextlib.AbstractContextManager[None]:
    """Inside, this thread makes all its calls, even if other ranks have made them already."""
    return threads.inside(_thread, makes_all=True)


def _move_own(
    function: Any, paths: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Moves `source`, which only this rank has, such as a temporary file, to a path of all ranks.

    `source` is a version of `target` (versions.py). If another rank of the node has made that
    version, or makes it now and succeeds, `source` is removed instead.
    """
    name, (source, target) = function.__name__, paths
    key = versions.key(os.path.realpath(target))
    with appends.alone_on_node():
        is_first = not journal.is_behind(key) and not journal.is_running(key)
        # In a target that is a folder, the names differ by rank: no other rank makes this call.
        is_into = is_first and name == "move" and os.path.isdir(target)
        is_noted = not is_into and journal.begin(key)
    if not is_noted:
        return function(*args, **kwargs)
    if not is_first:
        journal.fail(key)  # made_by_another may wait, which a rank must not do in the call
        if journal.made_by_another(key) and os.path.lexists(target):
            with making_all():
                is_folder = os.path.isdir(source) and not os.path.islink(source)
                (shutil.rmtree if is_folder else os.unlink)(source)
            return _repeated(key, paths, args)
        journal.begin(key)
    try:
        returned = _made(function, key, paths, args, kwargs)
    except BaseException:
        journal.fail(key)
        raise
    journal.succeed(key, _path_of(returned))
    return returned


def _path_of(returned: Any) -> str | None:
    return os.fspath(returned) if isinstance(returned, (str, os.PathLike)) else None


def _repeated(key: str, paths: list[str], args: tuple[Any, ...]) -> Any:
    """Notes that the call is taken as done, and returns what the other rank's call has returned; if
    that is the path of one of `args`, returns that argument."""
    returned = journal.repeat(key)
    journal.note_used(paths[-1])
    return next(
        (one for one in args if returned is not None and _path_of(one) == returned), returned
    )


def _made(
    function: Any, key: str, paths: list[str], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Calls `function`, and notes what this rank has made."""
    name = function.__name__
    with _alone_for(name):  # so that no other rank replaces the result before it is noted
        moved = _status(paths[0]) if name in _MOVES else None
        # shutil.move calls other functions that are wrapped, and writes files.
        with making_all(), versions.uncounted():
            returned = function(*args, **kwargs)
        status = _status(paths[-1]) if name in _MAKES else moved
        if status is not None:
            journal.note_made(key, paths[-1], status)
            journal.note_begun(paths[-1], status, "made")
    return returned


def _alone_for(name: str) -> contextlib.AbstractContextManager[None]:
    """Keeps other ranks out (appends.alone_on_node), except during calls that may take long."""
    return contextlib.nullcontext() if name in _LONG else appends.alone_on_node()


def _status(path: str) -> os.stat_result | None:
    with contextlib.suppress(OSError):
        return os.lstat(path)
    return None


def _is_done(name: str, paths: list[str], key: str) -> bool:
    """Whether this rank skips a call that another rank has made more often; then it removes what
    it has made for the call.

    A move is needed if nothing is at its target. Otherwise a source that this rank has made since
    the other rank's call is older than the target, and is removed here. Files to which this rank
    has appended stay.
    """
    if name in _MOVES and not os.path.lexists(paths[-1]):
        return False
    with appends.alone_on_node():  # so that no other rank replaces what is about to be removed
        made = journal.made_since(journal.last_success(key), paths[0])
        if made and name in _MOVES and not journal.has_all_ranks():
            return False  # a rank of another node may have dropped a newer version for this one
        for path in sorted(made, reverse=True):  # what is in a folder before the folder
            with contextlib.suppress(OSError):  # a folder that is not empty
                is_folder = os.path.isdir(path) and not os.path.islink(path)
                inspect.unwrap(os.rmdir if is_folder else os.unlink)(path)
    return True


def _paths(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """A call's absolute paths; [] if one is relative to an open folder, or a file of our own."""
    if any(kwargs.get(folder) is not None for folder in ("dir_fd", "src_dir_fd", "dst_dir_fd")):
        return []
    given = [*args, *(kwargs[one] for one in ("path", "name", "src", "dst") if one in kwargs)]
    paths = [
        os.path.abspath(os.fsdecode(one))
        for one in given
        if isinstance(one, (str, bytes, os.PathLike))
    ]
    return [] if any(one in path for path in paths for one in _HIDDEN) else paths


def _means_done(error: BaseException) -> bool:
    """Whether the call failed because its result is there already."""
    return (
        isinstance(error, shutil.Error)
        or getattr(error, "errno", None) in _DONE_ERRNOS
        or getattr(error, "error_code", None) in _DONE_CODES
    )
