"""Files that become visible only when complete, because all ranks write the script's own files.

The ranks run one program, so all of them call `open(path, "w")` and later read the file. If they
wrote in place, a rank that starts to write would truncate a file that another rank is reading. So
data goes to an unnamed file, which replaces the file at the path when it is closed. Each rank then
reads a complete file: its own, or another rank's.

A file that is kept open, such as a log, is not held back for long: it becomes visible when the
script flushes it, or after a second, and is written in place from there on.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import threading
import time
import weakref
from typing import Any

from tensorflow.mpi._src.files import appends, journal, names, saves, versions
from tensorflow.mpi._src.runtime import group

# Of Python: `seeing` replaces it, and creates the file.
_stat = os.stat
_HELD_SECONDS = 1.0
_SPECIAL = ("/proc/", "/sys/")
_KEPT_ATTRIBUTES = ("user.", "system.posix_acl_access")  # file systems set others themselves

_held: dict[int, weakref.ref[AtomicFile]] = {}  # used without a lock: __del__ may run anywhere
_lock = threading.Lock()
_watched = False  # whether a thread watches _held; under _lock


class AtomicFile:
    """A new version of the file `path`. A missing file is still missing until this one appears, or
    this process asks for it (exist): another rank that finds the file may read it.

    Owned by the writer, which opens `name` or duplicates `descriptor`, calls appear() after a
    flush, and close() at the end. The thread of this module calls appear() after a second, perhaps
    in the middle of a write. All methods are thread-safe.

    Args:
      named: whether `name` is in the file's folder, for writers that resolve symbolic links.

    Raises OSError if `path` cannot be opened, or no file can replace it; the caller then writes to
    `path` itself.
    """

    def __init__(self, path: str, named: bool = False) -> None:
        self._process = os.getpid()
        self._since = time.monotonic()
        self._appearing = threading.RLock()  # appear() may look for the path: exist()
        self._appeared = False
        self._placed = False  # whether it has replaced the file at `path`, and was not copied there
        self._given = os.path.abspath(path)
        self.path = os.path.realpath(path)
        folder = os.path.dirname(self.path)
        self._new = os.path.join(folder, f".tensorflow-mpi-{secrets.token_hex(8)}")
        self._before = _writable(self.path)
        self._created = False  # whether exist() has created the file at `path`
        mode = 0o666 if self._before is None else stat.S_IMODE(self._before.st_mode)
        self._nameless = not named
        if self._nameless:
            try:
                self.descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR, mode)
                self.name = f"/proc/self/fd/{self.descriptor}"
            except OSError:  # O_TMPFILE is not supported, as on NFS
                self._nameless = False
        if not self._nameless:
            flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_RDWR
            self.descriptor = os.open(self._new, flags, mode)
            self.name = self._new
        try:
            self._take_attributes()
        except OSError:
            self._remove_name()
            os.close(self.descriptor)
            raise
        self._number = versions.number(self.path)
        self._open = True
        _hold(self)

    def exist(self, path: str) -> None:
        """Creates an empty file at `path`, an absolute path, if that is this file and is missing:
        after open("w") it exists."""
        if path not in (self._given, self.path):
            return
        with self._appearing, contextlib.suppress(OSError):
            if self._before is None and not self._appeared:
                created = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
                self._before, self._created = os.fstat(created), True
                os.close(created)

    def appear(self, last: bool = False, due: bool = False) -> None:
        """Makes this file the one at `path`, unless that has happened, or the file there wins
        (_yields). Does not close this file.

        Args:
          last: nothing more will be written, or a call that renames or removes `path` follows; if
            the file there wins, this version is dropped.
          due: the script has not flushed it, but has kept it open for a second.

        Raises OSError if `path` can neither be replaced nor written, unless its folder is gone.
        """
        if self._process != os.getpid():
            return  # it belongs to the parent process
        if self._appeared:
            return
        with appends.alone_on_node(), self._appearing:
            if self._appeared or not self._open:
                return
            yields = self._yields(last, due)
            if yields and not last:
                return
            noted = versions.begin(self.path, self._number)
            try:
                if yields:
                    versions.warn_of_drop(self.path, self.descriptor)
                    journal.note_used(self.path)
                    self._remove_name()
                else:
                    self._placed = self._move_into_place()
                    if self._placed:
                        journal.note_begun(self.path, os.fstat(self.descriptor))
                    elif os.path.isdir(os.path.dirname(self.path)):
                        self._copy()
                        if not last:
                            return  # data written later must be copied again
                self._appeared = True
            finally:
                versions.end(self.path, self._number if noted else 0, self._appeared)
                self._note(closed=last)
        _held.pop(id(self), None)

    def close(self) -> None:
        """Call when nothing more will be written. Further calls do nothing."""
        if self._process != os.getpid():  # a child; its copy of the lock may be held forever
            if self._open:
                self._open = False
                os.close(self.descriptor)
            return
        appeared = self._appeared
        try:
            self.appear(last=True)
            if appeared and self._open:
                self._restore()
        finally:
            with self._appearing:
                if self._open:
                    self._note(closed=appeared)
                    self._open = False
                    os.close(self.descriptor)
            _held.pop(id(self), None)

    def write_in_place(self) -> bool:
        """Makes `descriptor` refer to the file at `path` itself, truncated as by open("w").

        For writers that lock the file: a lock belongs to a file, not to a name. Returns False if
        data has been written, or this file is already visible.
        """
        with self._appearing:
            if self._appeared or not self._open or os.fstat(self.descriptor).st_size:
                return False
            self._remove_name()
            self._appeared = True
            own = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
            os.dup2(own, self.descriptor, inheritable=False)
            os.close(own)
        _held.pop(id(self), None)
        return True

    def due(self) -> bool:
        return time.monotonic() - self._since >= _HELD_SECONDS

    def _yields(self, last: bool, due: bool) -> bool:
        """Whether the file at `path` wins: another rank of the node has already written this
        version (versions.py). But it does not win over a longer file of rank 0, which alone has
        the messages of Keras, nor, with `last`, over a longer one if that rank still writes it.

        A file that has appeared since this one was begun also wins if it is at least as long, or if
        this one is only due: the rank that has finished or flushed it may read it, so a shorter one
        must not replace it. With `last`, this second rule is not used on rank 0, or if the versions
        of all ranks are known. So of logs that differ in their times rank 0's remains. The empty
        file that this object has created at `path` never wins.
        """
        try:
            there = _stat(self.path)
        except OSError:
            return False
        before, size = self._before, os.fstat(self.descriptor).st_size
        is_new = before is None or (there.st_dev, there.st_ino) != (before.st_dev, before.st_ino)
        if (is_new or not self._created) and versions.is_written(self.path, self._number):
            if size <= there.st_size or not versions.is_same(self.path, self._number, there):
                return True
            return group.rank != 0 and not (last and versions.is_unfinished(self.path, there))
        if last and (group.rank == 0 or versions.are_known(self.path)):
            return False
        return is_new and (due or there.st_size >= size)

    def _take_attributes(self) -> None:
        """Takes the owner, mode and attributes of the file at `path`, which truncating keeps."""
        before, own = self._before, os.fstat(self.descriptor)
        if before is None:
            return
        if (before.st_uid, before.st_gid) != (own.st_uid, own.st_gid):
            os.fchown(self.descriptor, before.st_uid, before.st_gid)
        attributes: list[str] = []
        with contextlib.suppress(OSError):  # some file systems have none
            attributes = os.listxattr(self.path)
        for name in attributes:
            if name.startswith(_KEPT_ATTRIBUTES):
                os.setxattr(self.descriptor, name, os.getxattr(self.path, name))
        with contextlib.suppress(OSError):  # some file systems have no modes
            os.fchmod(self.descriptor, stat.S_IMODE(before.st_mode))

    def _move_into_place(self) -> bool:
        with contextlib.suppress(OSError):
            mode = _stat(self.path).st_mode
            # Whether the script has changed it meanwhile.
            if self._before is not None and mode != self._before.st_mode:
                os.fchmod(self.descriptor, stat.S_IMODE(mode))
        try:
            if self._nameless:
                # Python makes linkat() follow the symbolic link only if a src_dir_fd is passed.
                os.link(self.name, self._new, src_dir_fd=self.descriptor)
            os.replace(self._new, self.path)
        except OSError:  # the folder is gone, or /proc is not mounted
            self._remove_name(linked=True)
            return False
        return True

    def _restore(self) -> None:
        """On rank 0: if another rank, which was done before this one, has replaced this file by a
        shorter one (_yields), puts a copy there."""
        with contextlib.suppress(OSError):
            there, own = os.stat(self.path), os.fstat(self.descriptor)
            if group.rank or not self._placed or there.st_ino == own.st_ino:
                return
            with versions.uncounted():
                again = AtomicFile(self.path)
            again._number = self._number
            self._write_to(again.descriptor)
            again.close()

    def _copy(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        descriptor = os.open(self.path, flags, 0o666)
        try:
            self._write_to(descriptor)
        finally:
            os.close(descriptor)

    def _write_to(self, descriptor: int) -> None:
        with open(descriptor, "wb", closefd=False) as file:
            position = 0
            while block := os.pread(self.descriptor, 1 << 20, position):
                file.write(block)
                position += len(block)

    def _note(self, closed: bool) -> None:
        """Notes the file that this rank has placed, as it is now."""
        if self._placed:
            versions.note_placed(self.path, os.fstat(self.descriptor), closed)

    def _remove_name(self, linked: bool = False) -> None:
        """Unlinks `_new`. linked: also for a nameless file, which may have been linked there."""
        if linked or not self._nameless:
            with contextlib.suppress(OSError):
                os.unlink(self._new)

    def __del__(self) -> None:
        if hasattr(self, "_open"):
            self.close()


def applies(path: object) -> bool:
    """Whether writes to `path` should go through an AtomicFile."""
    if not saves.shared() or saves.writing() or not isinstance(path, (str, bytes, os.PathLike)):
        return False
    text = os.fsdecode(path)
    if "://" in text or os.path.realpath(text).startswith(_SPECIAL):
        return False
    try:
        status = os.stat(text)
    except OSError:
        return True
    # A file with several names must keep them, so it is written in place.
    linked = status.st_nlink > 1 and not names.is_made_here(os.path.abspath(text))
    return stat.S_ISREG(status.st_mode) and not linked


def held() -> list[AtomicFile]:
    """The files of this process that are not visible yet."""
    return [file for file in (found() for found in list(_held.values())) if file is not None]


def show(paths: list[str]) -> None:
    """Makes files at or below absolute paths visible, before a call that renames or removes them.
    Later writes are in place, or lost if the file at the path has won (AtomicFile.appear)."""
    for file in held():
        for path in paths:
            real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
            if (file.path + os.sep).startswith(real + os.sep):
                with contextlib.suppress(OSError):  # close() raises it again
                    file.appear(last=True)


def show_all() -> None:
    """As show, for all files, at exit."""
    for file in held():
        with contextlib.suppress(OSError):  # close() raises it again
            file.appear(last=True)


def exist(path: object) -> None:
    """Called before this process looks for `path`: see AtomicFile.exist."""
    if _held and isinstance(path, (str, bytes, os.PathLike)):
        for file in held():
            file.exist(os.path.abspath(os.fsdecode(path)))


def seeing(function: Any) -> Any:
    """Wraps a function of os whose first argument is a path, so that it finds files that are not
    visible yet."""

    def sees(path: Any, *args: Any, **kwargs: Any) -> Any:
        exist(path)
        return function(path, *args, **kwargs)

    for functions in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if function in functions:  # shutil.copytree looks for os.stat there
            functions.add(sees)
    return sees


def _writable(path: str) -> os.stat_result | None:
    """The status of the file `path`; None if it is missing. Raises OSError if open("w") would."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def _hold(file: AtomicFile) -> None:
    global _watched
    _held[id(file)] = weakref.ref(file)
    with _lock:
        if not _watched:
            with contextlib.suppress(RuntimeError):  # at exit no thread can start; see show_all()
                threading.Thread(target=_watch, name="tf-mpi-files", daemon=True).start()
                _watched = True


def _watch() -> None:
    """The thread that makes files visible after a second. Ends when there are none."""
    global _watched
    while True:
        time.sleep(_HELD_SECONDS / 4)
        with _lock:
            if not _held:
                _watched = False
                return
        _show_due()


def _show_due() -> None:
    """A function of its own, so that no variable of the thread keeps a file that was dropped."""
    for file in held():
        if file.due():
            with contextlib.suppress(OSError):  # close() raises it again
                file.appear(due=True)


def forget_parents() -> None:
    """Called in a forked child: the thread and the files belong to the parent."""
    global _watched, _lock
    _watched, _lock = False, threading.Lock()
    _held.clear()
