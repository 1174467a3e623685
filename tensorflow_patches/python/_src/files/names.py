"""Paths that differ by rank: makes rank 0's file available under another rank's path.

A path that contains a temporary folder, a process ID or the time differs by rank. Once waits.py has
matched the ranks' saves, this rank's path is a hard link to rank 0's file, which TensorFlow, Keras
and the script's own open() can read. A symbolic link would not do: a script that renames the file
to a path of all ranks would put a dangling link in the place of rank 0's file. The links are
removed when the rank ends, so the same files remain as from one process.
"""

from __future__ import annotations

import collections
import contextlib
import fnmatch
import functools
import os
import re
import secrets
import shutil
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

from tensorflow.mpi._src.messaging import collectives

_lock = threading.Lock()
_prefixes: dict[str, str] = {}  # this rank's prefix of a path -> rank 0's; under _lock
_made: dict[str, tuple[int, int]] = {}  # links created here -> device and inode
_made_folders: list[str] = []
_kept: dict[str, int] = {}  # folder of keep_for_other_ranks -> number of the last exchange before
_shares_number = False  # whether a rank in another container has this process's ID
_drawn = collections.deque[str](maxlen=1000)  # random names from tempfile, in this process


def noting_drawn(draw: Any) -> Any:
    """Wraps tempfile's generator of random names, and records each name."""

    def drawn(self: Any) -> str:
        name = draw(self)
        _drawn.append(name)
        return name

    return drawn


def renaming(rename: Any) -> Any:
    """Wraps os.rename and os.replace, which do nothing if source and target are links to one file.
    Then removes the source if its path differs by rank: it is a link to rank 0's file."""

    @functools.wraps(rename)
    def renamed(src: Any, dst: Any, **folders: Any) -> None:  # src and dst may be passed by name
        rename(src, dst, **folders)
        with contextlib.suppress(OSError, TypeError):
            own = os.path.abspath(os.fsdecode(src))
            if folders or own == os.path.abspath(os.fsdecode(dst)):
                return
            if pattern(own, short=True) != own and os.path.samefile(own, dst):
                os.unlink(own)

    return renamed


def note_process_numbers(numbers: list[int]) -> None:
    """Called once, with the process IDs of all ranks."""
    global _shares_number
    _shares_number = numbers.count(os.getpid()) > 1


def pattern(path: str, *, short: bool = False) -> str:
    """`path` with "*" in place of the parts that differ by rank: tempfile's names, the process ID.

    Args:
      short: also replaces a process ID of up to three digits, as in a container, or one that
        another rank has, too. A path with such a number may be the same on all ranks, so callers
        also compare the paths, or the files.
    """
    for name in tuple(_drawn):
        if name in path:
            path = path.replace(name, "*")
    number = str(os.getpid())
    if (len(number) <= 3 or _shares_number) and not short:
        return path
    return re.sub(rf"(?<!\d){number}(?!\d)", "*", path)


def of_rank_0(path: str) -> str:
    """Rank 0's path for `path`, if known from earlier saves; otherwise `path` itself."""
    with _lock:
        found = [own for own in _prefixes if _is_below(path, own)]
        if not found:
            return path
        own = max(found, key=len)
        return _prefixes[own] + path[len(own) :]


def _is_below(path: str, prefix: str) -> bool:
    """Whether `path` is in the folder `prefix`, or a file with that prefix: model-7.index."""
    return path.startswith(prefix) and path[len(prefix) : len(prefix) + 1] in ("", os.sep, ".")


def map_folders(own: str, theirs: str) -> None:
    """Notes that a save went to `own` here and to `theirs` on rank 0, and maps their folders."""
    own_parts, their_parts = own.split(os.sep), theirs.split(os.sep)
    found = {own: theirs}
    if len(own_parts) == len(their_parts):
        for end in range(1, len(own_parts)):
            if own_parts[end - 1] != their_parts[end - 1]:
                found[os.sep.join(own_parts[:end])] = os.sep.join(their_parts[:end])
    elif own_parts[-1] == their_parts[-1]:
        found[os.path.dirname(own)] = os.path.dirname(theirs)
    with _lock:
        _prefixes.update(found)


def is_made_here(path: str) -> bool:
    """Whether `path` is a link, created here, to a file of rank 0."""
    return path in _made


def keep_for_other_ranks(path: str) -> str:
    """On rank 0: links the save of `path` where other ranks find it even if the script removes it.

    Returns the link's path; "" if there is none, because the path does not show that it differs by
    rank, or there is no file. The link stays at least until the next exchange of all ranks.
    """
    for folder, before in list(_kept.items()):
        if collectives.last_ended > before:
            shutil.rmtree(folder, ignore_errors=True)
            del _kept[folder]
    if "://" in path or pattern(path, short=True) == path:
        return ""
    parts = path.split(os.sep)
    first_own = next(
        end
        for end in range(1, len(parts) + 1)
        if pattern(os.sep.join(parts[:end]), short=True) != os.sep.join(parts[:end])
    )
    try:
        folder = tempfile.mkdtemp(
            prefix=".tensorflow-mpi-", dir=os.sep.join(parts[: first_own - 1]) or os.sep
        )
        _kept[folder] = collectives.last_started
        kept = os.path.join(folder, parts[-1])
        for name, file in _files(kept, path):
            _link(name, file)
        # `folder` is empty if the save is not a file, such as the end of a training.
        return kept if os.listdir(folder) else ""
    except OSError:
        return ""


def link_to_rank_0(own: str, theirs: str, kept: str) -> bool:
    """Makes rank 0's file or folder `theirs`, or files with that prefix, available as `own`.

    kept: rank 0's link to them, tried first (keep_for_other_ranks), or "". Returns False if they
    are not visible from here, as on another node, or `own` cannot be created.
    """
    if "://" in own or "://" in theirs:
        return False
    found = False
    for source in filter(None, (kept, theirs)):
        try:
            for name, file in _files(own, source):
                found |= _link(name, file)
            return found or os.path.isdir(source)
        except OSError:
            continue
    return False


def _files(link: str, saved: str) -> Iterator[tuple[str, str]]:
    """(path of its link, path) of each file of the save `saved`, which is to be linked as `link`.
    If `saved` is a folder, makes the folder `link`."""
    if os.path.isdir(saved):
        _make_folder(link)
        for folder, _, names in os.walk(saved):
            for name in names:
                file = os.path.join(folder, name)
                yield link + file[len(saved) :], file
        return
    folder, base = os.path.split(saved)
    for name in os.listdir(folder):
        if _is_below(name, base):
            yield link + name[len(base) :], os.path.join(folder, name)
        elif name == "checkpoint" and os.path.dirname(link) != folder:
            # The file that names the latest checkpoint of a folder.
            yield os.path.join(os.path.dirname(link), name), os.path.join(folder, name)


def _link(name: str, file: str) -> bool:
    """Makes `name` a link to `file`, replacing a file that may be there."""
    _make_folder(os.path.dirname(name))
    with contextlib.suppress(OSError):
        if os.path.samefile(name, file):
            return True
    # Random, because in a shared folder others could create a link of a name that they can guess.
    new = f"{name}.{secrets.token_hex(8)}"
    try:
        try:
            os.link(file, new)
        except FileNotFoundError:
            return False
        except OSError:  # on another disk
            with open(file, "rb") as source, open(new, "xb") as copy:
                shutil.copyfileobj(source, copy)
        os.replace(new, name)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(new)
    status = os.lstat(name)
    _made[name] = (status.st_dev, status.st_ino)
    return True


def _make_folder(folder: str) -> None:
    missing = []
    while folder and not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for folder in reversed(missing):
        os.mkdir(folder)
        _made_folders.append(folder)


def remove(path: str) -> None:
    """Removes links created here as `path`, which may have wildcards, or below it. Rank 0 removes
    its own files."""
    path = os.path.abspath(path)
    _unlink([n for n in _made if fnmatch.fnmatch(n, path) or n.startswith(path + os.sep)])
    _remove_folders([f for f in _made_folders if f == path or f.startswith(path + os.sep)])


def remove_all() -> None:
    """Removes, at exit, all links created here, but not files that have replaced them."""
    for folder in _kept:
        shutil.rmtree(folder, ignore_errors=True)
    _unlink(list(_made))
    _remove_folders(_made_folders)


def _unlink(names: list[str]) -> None:
    for name in names:
        with contextlib.suppress(OSError):
            status = os.lstat(name)
            if (status.st_dev, status.st_ino) == _made.pop(name):
                os.unlink(name)


def _remove_folders(folders: list[str]) -> None:
    for folder in reversed(folders):
        with contextlib.suppress(OSError):  # it is not empty
            os.rmdir(folder)
