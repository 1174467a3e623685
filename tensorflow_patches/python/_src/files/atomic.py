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

from tensorflow.mpi._src.files import appends, names, saves, versions
from tensorflow.mpi._src.runtime import group

_HELD_SECONDS = 1.0
_SPECIAL = ("/proc/", "/sys/")
_KEPT_ATTRIBUTES = ("user.", "system.posix_acl_access")  # file systems set others themselves

_held: dict[int, weakref.ref[AtomicFile]] = {}  # used without a lock: __del__ may run anywhere
_lock = threading.Lock()
_watched = False  # whether a thread watches _held; under _lock


class AtomicFile:
    """A new version of the file `path`. As with open("w"), `path` exists from now on; it is created
    empty if it was missing.

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
        self._appearing = threading.Lock()
        self._appeared = False
        self._counted = not versions.is_uncounted()  # whether versions.py notes it by itself
        self._placed = False  # whether it has replaced the file at `path`, and was not copied there
        self.path = os.path.realpath(path)
        folder = os.path.dirname(self.path)
        self._new = os.path.join(folder, f".tensorflow-mpi-{secrets.token_hex(8)}")
        self._before, self._created = _make(self.path)
        mode = stat.S_IMODE(self._before.st_mode)
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
        self._open = True
        _hold(self)

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
            noted = self._counted and versions.begin(self.path)
            try:
                if yields:
                    versions.warn_of_drop(self.path, self.descriptor)
                    self._remove_name()
                else:
                    self._placed = self._move_into_place()
                    if self._placed:
                        appends.note_begun(self.path, os.fstat(self.descriptor))
                    elif os.path.isdir(os.path.dirname(self.path)):
                        self._copy()
                        if not last:
                            return  # data written later must be copied again
                self._appeared = True
            finally:
                versions.end(self.path, noted, self._appeared)
                self._note()
        _held.pop(id(self), None)

    def close(self) -> None:
        """Call when nothing more will be written. Further calls do nothing."""
        if self._process != os.getpid():  # a child; its copy of the lock may be held forever
            if self._open:
                self._open = False
                os.close(self.descriptor)
            return
        try:
            self.appear(last=True)
        finally:
            with self._appearing:
                if self._open:
                    self._note()
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
        version (versions.py).

        A file that has appeared since this one was begun also wins if it is at least as long, or if
        this one is only due: the rank that has finished or flushed it may read it, so a shorter one
        must not replace it. With `last`, this second rule is not used on rank 0, or if the versions
        of all ranks are known. So of logs that differ in their times rank 0's remains. The empty
        file that this object has created at `path` never wins.
        """
        try:
            there = os.stat(self.path)
        except OSError:
            return False
        is_new = (there.st_dev, there.st_ino) != (self._before.st_dev, self._before.st_ino)
        if (is_new or not self._created) and versions.is_written(self.path):
            return True
        if last and (group.rank == 0 or versions.are_known(self.path)):
            return False
        return is_new and (due or there.st_size >= os.fstat(self.descriptor).st_size)

    def _take_attributes(self) -> None:
        """Takes the owner, mode and attributes of the file at `path`, which truncating keeps."""
        before, own = self._before, os.fstat(self.descriptor)
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
            mode = os.stat(self.path).st_mode
            if mode != self._before.st_mode:  # the script has changed it meanwhile
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

    def _copy(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with os.fdopen(os.open(self.path, flags, 0o666), "wb") as file:
            position = 0
            while block := os.pread(self.descriptor, 1 << 20, position):
                file.write(block)
                position += len(block)

    def _note(self) -> None:
        """Notes the file that this rank has placed, as it is now."""
        if self._placed:
            versions.note_placed(self.path, os.fstat(self.descriptor))

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


def _make(path: str) -> tuple[os.stat_result, bool]:
    """Creates the file `path` if it is missing. Returns its status, and whether it was created."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
    created = False
    try:
        descriptor = os.open(path, flags | os.O_EXCL, 0o666)
        created = True
    except FileExistsError:
        descriptor = os.open(path, flags, 0o666)
    try:
        return os.fstat(descriptor), created
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
