"""A file that is seen when it is whole: every rank writes the script's own files, to one path.

The ranks run one program, so `open(path, "w")` is made by all of them, and each reads what it has
written. Written in place, a rank that has just begun cuts off what another reads. So what is
written goes to a file without a name, which takes the path's place when it is closed. Each rank
then reads a whole file: its own, or the equal one of a rank that came later.

A file that is kept open, as a log, is not held back: it takes its place when the script flushes it,
or after a second, and is written in place from there on.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import threading
import time
import weakref

from tensorflow.mpi._src.files import names, saves
from tensorflow.mpi._src.runtime import group

_HELD_SECONDS = 1.0
_SPECIAL = ("/proc/", "/sys/", "/dev/")

_held: dict[int, weakref.ref[AtomicFile]] = {}  # its operations are atomic: __del__ may be anywhere
_lock = threading.Lock()
_watched = False  # a thread looks at _held; under _lock


class AtomicFile:
    """A new file for `path`, which is there at once, empty if it was missing, as with open("w").

    Owned by what writes it, which opens `name` or duplicates `descriptor`, and calls appear() with
    its data written. Any thread may call any method.

    Args:
      named: `name` is the file's own, in its folder, for who looks where it leads to.

    Raises OSError: as opening `path` does, or where no file can be put in its place; the caller
    then writes to `path` itself.
    """

    def __init__(self, path: str, named: bool = False) -> None:
        self._process = os.getpid()
        self._since = time.monotonic()
        self._appearing = threading.Lock()
        self._appeared = False
        self.path = os.path.realpath(path)
        folder = os.path.dirname(self.path)
        self._new = os.path.join(folder, f".tensorflow-mpi-{secrets.token_hex(8)}")
        self._before = _make(self.path)
        mode = stat.S_IMODE(self._before.st_mode)
        self._nameless = not named
        if self._nameless:
            try:
                self.descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR, mode)
                self.name = f"/proc/self/fd/{self.descriptor}"
            except OSError:  # not on NFS
                self._nameless = False
        if not self._nameless:
            flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_RDWR
            self.descriptor = os.open(self._new, flags, mode)
            self.name = self._new
        os.fchmod(self.descriptor, mode)
        self._open = True
        _hold(self)

    def appear(self, last: bool = False) -> None:
        """Takes the place of `path`, unless it has, or rank 0's there is as long. Not closed.

        Args:
          last: if rank 0's is, what was written here is given up.

        Raises OSError if it can be put there in no way.
        """
        if self._process != os.getpid():
            return  # it is the parent's
        with self._appearing:
            if self._appeared or not self._open:
                return
            if self._yields():
                if not last:
                    return
                self._forget()
            elif not self._move_into_place() and os.path.isdir(os.path.dirname(self.path)):
                self._copy()
                if not last:
                    return  # what is written after this is not there yet
            self._appeared = True
        _held.pop(id(self), None)

    def close(self) -> None:
        """Called when nothing more will be written. Later calls do nothing."""
        try:
            self.appear(last=True)
        finally:
            with self._appearing:
                if self._open:
                    self._open = False
                    os.close(self.descriptor)
            _held.pop(id(self), None)

    def write_in_place(self) -> bool:
        """Leaves `path`'s own file to the caller, emptied as by open("w"), on `descriptor`.

        For who locks the file that it writes: a lock is on a file, not on a name. False if
        something has been written, or seen.
        """
        with self._appearing:
            if self._appeared or not self._open or os.fstat(self.descriptor).st_size:
                return False
            self._forget()
            self._appeared = True
            own = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
            os.dup2(own, self.descriptor, inheritable=False)
            os.close(own)
        _held.pop(id(self), None)
        return True

    def due(self) -> bool:
        return time.monotonic() - self._since >= _HELD_SECONDS

    def _yields(self) -> bool:
        """Whether what is there stays: it came after this was begun, and is as long at least.

        Of equal files one is as good as another; of logs that differ in times rank 0's is left.
        """
        if group.rank == 0:
            return False
        try:
            there = os.stat(self.path)
        except OSError:
            return False
        came = (there.st_dev, there.st_ino) != (self._before.st_dev, self._before.st_ino)
        return came and there.st_size >= os.fstat(self.descriptor).st_size

    def _move_into_place(self) -> bool:
        try:
            if self._nameless:
                # Only with a folder's descriptor does Python follow the link, as linkat() must.
                os.link(self.name, self._new, src_dir_fd=self.descriptor)
            os.replace(self._new, self.path)
        except OSError:  # its folder is gone, or there is no /proc
            self._forget(named=self._nameless)
            return False
        return True

    def _copy(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with os.fdopen(os.open(self.path, flags, 0o666), "wb") as file:
            place = 0
            while block := os.pread(self.descriptor, 1 << 20, place):
                file.write(block)
                place += len(block)

    def _forget(self, named: bool = False) -> None:
        if named or not self._nameless:
            with contextlib.suppress(OSError):
                os.unlink(self._new)

    def __del__(self) -> None:
        if hasattr(self, "_open"):
            self.close()


def applies(path: object) -> bool:
    """Whether what is written to `path` now may be held back."""
    if not saves.shared() or saves.writing() or not isinstance(path, (str, bytes, os.PathLike)):
        return False
    text = os.fsdecode(path)
    if "://" in text or os.path.realpath(text).startswith(_SPECIAL):
        return False
    try:
        status = os.stat(text)
    except OSError:
        return True
    # Of a file with two names, both stay names of one file.
    linked = status.st_nlink > 1 and not names.is_made_here(os.path.abspath(text))
    return stat.S_ISREG(status.st_mode) and not linked


def held() -> list[AtomicFile]:
    """What this process is writing, and nobody has seen."""
    return [file for file in (found() for found in list(_held.values())) if file is not None]


def show_all() -> None:
    """At exit. What is written to them from here on is written in place."""
    for file in held():
        with contextlib.suppress(OSError):  # its close tells
            file.appear(last=True)


def _make(path: str) -> os.stat_result:
    """Of the file `path`, which is made if it is missing."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def _hold(file: AtomicFile) -> None:
    global _watched
    _held[id(file)] = weakref.ref(file)
    with _lock:
        if not _watched:
            _watched = True
            threading.Thread(target=_watch, name="tf-mpi-files", daemon=True).start()


def _watch() -> None:
    """Ends when nothing is held back."""
    global _watched
    while True:
        time.sleep(_HELD_SECONDS / 4)
        with _lock:
            if not _held:
                _watched = False
                return
        for file in held():
            if file.due():
                with contextlib.suppress(OSError):  # its close tells
                    file.appear()


def forget_parents() -> None:
    """In a forked child: the parent has the thread, and its files."""
    global _watched, _lock
    _watched, _lock = False, threading.Lock()
    _held.clear()
