"""Makes files that the script writes through Python or TensorFlow visible only when complete.

Covers open(path, "w") and everything built on it (pathlib, json, pickle, csv, zipfile, NumPy,
pandas), shutil.copy, h5py.File(path, "w"), TFRecordWriter, tf.io.gfile and tf.io.write_file. Only
rank 0 writes files saved by Keras and TensorFlow (saves.py). Files opened to append or to change
are written in place; text that all ranks append is written once (appends.py).
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import weakref
from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.files import (
    appends,
    atomic,
    differing_names,
    journal,
    saves,
    shared_calls,
    versions,
)
from tensorflow.mpi._src.lifecycle import engine
from tensorflow.mpi._src.runtime import c_api, group, log

_MODES = {"w", "wt", "tw", "wb", "bw", "w+", "w+t", "wt+", "wb+", "w+b", "bw+"}
_APPEND_MODES = {"a", "at", "ta", "ab", "ba", "a+", "a+t", "at+", "ab+", "a+b", "ba+"}
_CHANGES = "changes "
_databases: set[str] = set()  # in which this rank has changed rows; on ranks 0 and 1
# By id(); _alive() lists them without a lock.
_connections: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # to databases
_files: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # to flush at exit
_raws: weakref.WeakValueDictionary[int, _Raw] = weakref.WeakValueDictionary()  # see locking()


def install() -> None:
    """Called once, when TensorFlow's libraries are loaded. Collective."""
    if not saves.shared():
        return
    journal.install()
    engine.when_forked(atomic.forget_parents)
    engine.after_the_end(_end)


class _Raw(io.FileIO):
    """A raw file that becomes visible when it is closed, or when its buffer is flushed.

    NumPy and PIL ask for the descriptor, flush, and then write through the descriptor: at that
    flush the file is not complete. So once the descriptor is known to the caller, a flush counts
    only if the file has grown through the descriptor since the last write.
    """

    def __init__(self, path: Any, mode: str, whole: atomic.AtomicFile) -> None:
        self._whole = whole
        self.gave_descriptor = False
        self._end = 0  # where the data of write() ends
        super().__init__(path, mode, opener=lambda *_: os.dup(whole.descriptor))
        _raws[id(self)] = self

    def fileno(self) -> int:
        self.gave_descriptor = True
        return super().fileno()

    def write(self, data: Any) -> int:
        written = super().write(data)
        self._end = max(self._end, self.tell())
        return written

    def flush(self) -> None:
        super().flush()
        if not self.gave_descriptor or os.fstat(super().fileno()).st_size > self._end:
            self._whole.appear()

    def close(self) -> None:
        if not self.closed:
            try:
                self._whole.close()
            finally:
                super().close()

    def write_in_place(self) -> None:
        if self._whole.write_in_place():
            os.dup2(self._whole.descriptor, super().fileno(), inheritable=False)


class _FlushesRaw(io.BufferedIOBase):
    raw: Any

    def flush(self) -> None:
        super().flush()
        self.raw.flush()


class _WriteBuffer(_FlushesRaw, io.BufferedWriter):
    raw: Any


class _ReadWriteBuffer(_FlushesRaw, io.BufferedRandom):
    raw: Any


def opening(_stock: Any) -> Any:
    """Replaces builtins.open and io.open, which are the same function."""
    return _OPEN


def opening_by_accessor(_stock: Any) -> Any:
    """Replaces open in the accessor of Python 3.10's pathlib."""
    return staticmethod(_OPEN)


def _make_open(stock: Any) -> Any:
    def open(  # noqa: A001
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        # stock() raises ValueError for these.
        wrong = "b" in mode and (encoding, errors, newline) != (None, None, None)
        stock_only = wrong or buffering == 0 or not closefd or opener is not None
        if mode.startswith("w") and atomic.applies(file):
            appends.note_truncation(file)
            if mode in _MODES and not stock_only:
                whole = _begin(file)
                if whole is not None:
                    differing_names.note(file)
                    raw: Any = _Raw(file, "w+" if "+" in mode else "w", whole)
                    return _file_object(raw, mode, buffering, encoding, errors, newline)
        if mode in _APPEND_MODES and not stock_only and atomic.applies(file):
            with contextlib.suppress(OSError):  # stock() raises it, unless only reading is denied
                raw = appends.Raw(file)
                differing_names.note(file)
                return _file_object(raw, mode, buffering, encoding, errors, newline)
        atomic.exist(file)
        opened = stock(file, mode, buffering, encoding, errors, newline, closefd, opener)
        if mode.startswith("r"):
            versions.note_read(file)
        if mode.startswith("x") and atomic.applies(file):
            differing_names.note(file)
        return opened

    return open


_OPEN = _make_open(io.open)


def _file_object(
    raw: Any,
    mode: str,
    buffering: int,
    encoding: str | None,
    errors: str | None,
    newline: str | None,
) -> Any:
    """Builds the file object as io.open() does."""
    size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
    # To a BufferedWriter np.save writes by the descriptor, which appends.Raw does not notice.
    appends_bytes = "b" in mode and isinstance(raw, appends.Raw)
    both = "+" in mode or appends_bytes
    buffer = _ReadWriteBuffer(raw, size) if both else _WriteBuffer(raw, size)
    if "b" in mode:
        _files[id(buffer)] = buffer
        return buffer
    text: Any = io.TextIOWrapper(buffer, encoding, errors, newline, line_buffering=buffering == 1)
    if isinstance(raw, _Raw):
        raw.gave_descriptor = False  # Python 3.10's TextIOWrapper has called fileno()
    text.mode = mode
    _files[id(text)] = text
    return text


def _alive(known: weakref.WeakValueDictionary[int, Any]) -> list[Any]:
    return [one for one in (found() for found in known.valuerefs()) if one is not None]


def _end() -> None:
    """At exit, after the ranks have joined or this one has failed: flushes files, then warns."""
    for file in _alive(_files):
        with contextlib.suppress(OSError, ValueError):
            file.flush()
    atomic.show_all()
    if group.rank == 0:
        appends.warn_of_different_text()
    if group.rank == 1:
        differing_names.warn_of_other_names()
        _warn_of_shared_changes()


def _begin(path: Any, named: bool = False) -> atomic.AtomicFile | None:
    """A new AtomicFile for `path`; None if the file is to be written in place."""
    if not atomic.applies(path):
        return None
    try:
        return atomic.AtomicFile(os.fsdecode(path), named)
    except OSError:  # opening it in place raises this again, if it concerns the path
        return None


def connecting(connect: Any) -> Any:
    """Wraps sqlite3.connect, to note whether a rank has changed rows of a database.

    Does not cover connections whose class the script chooses.
    """

    def connects(database: Any, *args: Any, **kwargs: Any) -> Any:
        if group.rank > 1 or "factory" in kwargs or len(args) > 4:
            return connect(database, *args, **kwargs)
        connection = connect(database, *args, factory=_noting_connection(), **kwargs)
        if isinstance(database, (str, bytes, os.PathLike)) and os.path.isfile(database):
            connection.tf_mpi_path = os.path.abspath(os.fsdecode(database))
            _connections[id(connection)] = connection
        return connection

    return connects


@functools.cache
def _noting_connection() -> Any:
    import sqlite3

    class Connection(sqlite3.Connection):
        tf_mpi_path = ""

        def close(self) -> None:
            _note_changes(self)
            super().close()

        def __del__(self) -> None:
            if self.tf_mpi_path:
                _note_changes(self)
            getattr(super(), "__del__", lambda: None)()  # Python 3.13 closes it there

    return Connection


def at_end() -> None:
    """At exit, before the ranks join: flushes files that are open to append, and notes changes by
    connections that are still open."""
    for file in _alive(_files):
        with contextlib.suppress(OSError, ValueError):
            if isinstance(getattr(file, "buffer", file).raw, appends.Raw):
                file.flush()
    appends.at_end()
    for connection in _alive(_connections):
        _note_changes(connection)
        connection.tf_mpi_path = ""


def _note_changes(connection: Any) -> None:
    """Notes a database in which this rank has changed rows; rank 0 also posts it."""
    path = connection.tf_mpi_path
    with contextlib.suppress(Exception):  # closed, or used by another thread
        if path and path not in _databases and connection.total_changes:
            _databases.add(path)
            if group.rank == 0:
                c_api.load().tfmpi_post(f"{_CHANGES}{path}".encode())


def _warn_of_shared_changes() -> None:
    """Warns on rank 1, at exit."""
    for path in _databases:
        if c_api.load().tfmpi_posted(f"{_CHANGES}{path}".encode()):
            log.once(
                f"each of the {group.size} ranks has written to the database '{path}', so rows "
                f"that all of them insert are there {group.size} times. Write on one rank: if "
                "tf.mpi.rank() == 0",
                key="all insert",
                every_rank=True,
            )


def locking(lock: Any) -> Any:
    """Wraps a lock function. A lock belongs to a file, not to a name, so before a new file is
    locked, its descriptor is switched to the file at the path, which all ranks share."""

    def locks(file: Any, *args: Any, **kwargs: Any) -> Any:
        before = {raw: raw.gave_descriptor for raw in _alive(_raws)}
        descriptor = file if isinstance(file, int) else file.fileno()
        for raw, gave_descriptor in before.items():
            if not raw.closed and io.FileIO.fileno(raw) == descriptor:
                raw.write_in_place()
                raw.gave_descriptor = gave_descriptor  # only the lock function has got it
        return lock(file, *args, **kwargs)

    return locks


def checking_before_write(check: Any) -> Any:
    """Wraps the method by which FileIO, and so tf.io.gfile.GFile, opens its file."""

    def prewrite_check(self: Any) -> None:
        from tensorflow.python.lib.io import _pywrap_file_io

        name, mode = self._FileIO__name, self._FileIO__mode
        whole = None
        opens = not self._writable_file and self._write_check_passed
        if opens and mode.startswith("a") and atomic.applies(name):
            with contextlib.suppress(OSError):
                self._writable_file = appends.Writable(name)
                _files[id(self._writable_file)] = self._writable_file
                return
        if opens and mode in _MODES:
            whole = _begin(name)
        if whole is None:
            check(self)
            return
        self._writable_file = _pywrap_file_io.WritableFile(os.fsencode(whole.name), mode.encode())
        # Attributes are destroyed in the order of their creation: the writer flushes first.
        self._tf_mpi_file = whole

    return prewrite_check


def copying(copy: Any) -> Any:
    """Wraps file_io.copy_v2, by which tf.io.gfile copies."""
    copy_once = shared_calls.taken_as_done(copy)

    def copy_v2(src: Any, dst: Any, overwrite: bool = False) -> None:
        if not overwrite:
            return copy_once(src, dst)
        whole = _begin(dst) if os.path.isfile(src) else None
        if whole is None:
            copy(src, dst, overwrite)
            return
        with contextlib.closing(whole):
            copy(src, whole.name, overwrite=True)

    return copy_v2


def making_record_writer(init: Any) -> Any:
    """Wraps TFRecordWriter.__init__."""

    def __init__(self: Any, path: Any, options: Any = None) -> None:
        whole = _begin(path)
        init(self, path if whole is None else whole.name, options)
        if whole is not None:
            self._tf_mpi_file = whole

    return __init__


def making_hdf5_file(init: Any) -> Any:
    """Wraps h5py.File: HDF5 locks files that it writes, so ranks could not create the same one."""

    def __init__(
        self: Any, name: Any, mode: str = "r", driver: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        whole = _begin(name, named=True) if mode == "w" and driver is None else None
        init(self, name if whole is None else whole.name, mode, driver, *args, **kwargs)
        if whole is not None:
            self._tf_mpi_file, self._tf_mpi_name = whole, os.fsdecode(name)

    return __init__


def naming_hdf5_file(filename: Any) -> Any:
    """Wraps h5py.File.filename, to return the script's path."""
    return property(lambda self: getattr(self, "_tf_mpi_name", None) or filename.fget(self))


def flushing(flush: Any) -> Any:
    """Makes a file of FileIO, TFRecordWriter or h5py visible when it is flushed."""

    def flushes(self: Any, *args: Any) -> Any:
        result = flush(self, *args)
        whole = getattr(self, "_tf_mpi_file", None)
        if whole is not None:
            whole.appear()
        return result

    return flushes


def closing(close: Any) -> Any:
    """Makes a file of FileIO, TFRecordWriter or h5py visible when it is closed."""

    def closes(self: Any, *args: Any) -> Any:
        result = close(self, *args)
        whole = getattr(self, "_tf_mpi_file", None)
        if whole is not None:
            whole.close()
            self._tf_mpi_file = None
        return result

    return closes


def writing_file(function: Any) -> Any:
    """Wraps tf.io.write_file in eager code; in a graph the op writes in place."""

    def write_file(filename: Any, contents: Any, name: Any = None) -> Any:
        path = filename.numpy() if hasattr(filename, "_numpy_internal") else filename
        eager = tf.executing_eagerly()
        whole = _begin(path) if eager and isinstance(path, (str, bytes)) else None
        if whole is None:
            return function(filename, contents, name)
        with contextlib.closing(whole):
            return function(whole.name, contents, name)

    return write_file
