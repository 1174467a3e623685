"""Names that differ by rank: what a rank calls a file that rank 0 has saved under another path.

A path from a temporary folder, a process number or the time is another one on each rank. When the
ranks' saves have been matched by their order (waits.py), this rank's name is made to stand for rank
0's file: a hard link, which whatever reads files finds, TensorFlow, Keras or the script's own
open(). Not a symbolic one: a script that renames what it has saved would leave it pointing nowhere,
in the place of the file of rank 0. The links go when the rank ends: what stays are the files of one
process.
"""

from __future__ import annotations

import collections
import contextlib
import fnmatch
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
_folders: dict[str, str] = {}  # this rank's prefix of a path -> rank 0's; under _lock
_made: dict[str, tuple[int, int]] = {}  # names that were made here -> device and inode
_made_folders: list[str] = []


_kept: dict[str, int] = {}  # folders of files that rank 0 keeps -> meetings before
_DRAWN = collections.deque[str](maxlen=1000)  # by tempfile, in this process


def noting_drawn(draw: Any) -> Any:
    """Of tempfile's sequence of names: each is known here when it is drawn."""

    def drawn(self: Any) -> str:
        name = draw(self)
        _DRAWN.append(name)
        return name

    return drawn


def pattern(path: str, *, short: bool = False) -> str:
    """`path` without what differs by rank: tempfile's names, and the process number.

    Args:
      short: also a process number that has few digits, as in a container. It may be another number
        that is the same on all ranks: for saves, which are compared by their paths first.
    """
    for name in tuple(_DRAWN):
        if name in path:
            path = path.replace(name, "*")
    number = str(os.getpid())
    if len(number) <= 3 and not short:
        return path
    return re.sub(rf"(?<!\d){number}(?!\d)", "*", path)


def of_rank_0(path: str) -> str:
    """What rank 0 calls `path`, as far as earlier saves tell; `path` itself if they do not."""
    with _lock:
        found = [own for own in _folders if _is_below(path, own)]
        if not found:
            return path
        own = max(found, key=len)
        return _folders[own] + path[len(own) :]


def _is_below(path: str, prefix: str) -> bool:
    """A file of a folder, or of several files that begin alike: model-7.index of model-7."""
    return path.startswith(prefix) and path[len(prefix) : len(prefix) + 1] in ("", os.sep, ".")


def map_folders(own: str, theirs: str) -> None:
    """One save of all ranks was `own` here, and `theirs` on rank 0: so are their folders."""
    ours, others = own.split(os.sep), theirs.split(os.sep)
    found = {own: theirs}
    if len(ours) == len(others):
        for end in range(1, len(ours)):
            if ours[end - 1] != others[end - 1]:
                found[os.sep.join(ours[:end])] = os.sep.join(others[:end])
    elif ours[-1] == others[-1]:
        found[os.path.dirname(own)] = os.path.dirname(theirs)
    with _lock:
        _folders.update(found)


def is_made_here(path: str) -> bool:
    """Whether `path` is a name that stands for a file of rank 0's."""
    return path in _made


def keep_for_other_ranks(path: str) -> str:
    """On rank 0: where the save of `path` stays for the other ranks, if the script removes it.

    Empty where its name does not say that it differs by rank. Until all ranks have met again.
    """
    for folder, before in list(_kept.items()):
        if collectives.met > before:
            shutil.rmtree(folder, ignore_errors=True)
            del _kept[folder]
    if "://" in path or pattern(path, short=True) == path:
        return ""
    parts = path.split(os.sep)
    beside = next(
        end
        for end in range(1, len(parts) + 1)
        if pattern(os.sep.join(parts[:end]), short=True) != os.sep.join(parts[:end])
    )
    try:
        folder = tempfile.mkdtemp(
            prefix=".tensorflow-mpi-", dir=os.sep.join(parts[: beside - 1]) or os.sep
        )
        _kept[folder] = collectives.started
        kept = os.path.join(folder, parts[-1])
        for name, file in _files(kept, path):
            _link(name, file)
        # Nothing where a save is no file, as the end of a training.
        return kept if os.listdir(folder) else ""
    except OSError:
        return ""


def link_to_rank_0(own: str, theirs: str, kept: str) -> bool:
    """Rank 0's file or folder `theirs`, or files that begin so, are found under `own`, too.

    False: they are not to be seen from here, as on another node, or `own` cannot be made.
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


def _files(own: str, theirs: str) -> Iterator[tuple[str, str]]:
    """(this rank's name, rank 0's) of all files of a save."""
    if os.path.isdir(theirs):
        _make_folder(own)
        for folder, _, names in os.walk(theirs):
            for name in names:
                file = os.path.join(folder, name)
                yield own + file[len(theirs) :], file
        return
    folder, base = os.path.split(theirs)
    for name in os.listdir(folder):
        if _is_below(name, base):
            yield own + name[len(base) :], os.path.join(folder, name)
        elif name == "checkpoint" and os.path.dirname(own) != folder:
            # Which of a folder's checkpoints is the latest.
            yield os.path.join(os.path.dirname(own), name), os.path.join(folder, name)


def _link(name: str, file: str) -> bool:
    """`name` becomes a name of `file`, in place of what this rank may have there."""
    _make_folder(os.path.dirname(name))
    with contextlib.suppress(OSError):
        if os.path.samefile(name, file):
            return True
    # In a shared folder whoever can guess a name can have a link of that name there.
    new = f"{name}.{secrets.token_hex(8)}"
    try:
        try:
            os.link(file, new)
        except FileNotFoundError:
            return False  # gone already
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
    """What was made here as `path`, with wildcards, or below it: rank 0 removes its own."""
    path = os.path.abspath(path)
    _unlink([n for n in _made if fnmatch.fnmatch(n, path) or n.startswith(path + os.sep)])
    _remove_folders([f for f in _made_folders if f == path or f.startswith(path + os.sep)])


def remove_all() -> None:
    """At exit: what was made here; files that the script has put in its place stay."""
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
        with contextlib.suppress(OSError):  # it holds something else
            os.rmdir(folder)
