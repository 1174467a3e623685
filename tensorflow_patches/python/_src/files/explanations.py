"""Explains failed file calls of the script: every rank makes them, on one disk.

A late rank may find that a file to create exists already, or that a file to read is gone. Calls
that only change a path succeed nevertheless, if the ranks are on one node (shared_calls.py).
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import time

from tensorflow.mpi._src.files import saves
from tensorflow.mpi._src.lifecycle import ends
from tensorflow.mpi._src.runtime import group

_started = time.time()
_EXISTS = (errno.EEXIST, errno.ENOTEMPTY)
# Messages of libraries whose errors have no attribute with the file name.
_FILE_ERRORS = (
    (errno.EEXIST, re.compile(r"(/?[^;\n]+); File exists")),
    (errno.ENOENT, re.compile(r"(/?[^;\n]+); No such file")),
    (errno.ENOENT, re.compile(r"Failed to find any matching files for (\S+)")),
    (errno.ENOENT, re.compile(r"File not found: filepath=(.+?)\. Please")),
    (errno.ENOENT, re.compile(r"unable to open file: name = '(.+?)', errno = 2")),
    (errno.ENOENT, re.compile(r"SavedModel file does not exist at: (.+?)/?\{")),
)


def install() -> None:
    """Called once, when TensorFlow's libraries are loaded."""
    if saves.shared():
        ends.explain_by(explanation)


def explanation(error: BaseException) -> str | None:
    """An explanation of an uncaught error of a file call or a command; None for other errors."""
    if "unable to lock file" in str(error):
        or_create = ", or create it: h5py.File(path, 'w')" if saves.shared() else ""
        return (
            f"all {group.group_size} ranks open a file to change it, but HDF5 allows only one "
            f"writer: change it on rank 0 only (if tf.mpi.rank() == 0){or_create}"
        )
    if "database is locked" in str(error):
        return (
            f"all {group.group_size} ranks write to one database, but SQLite allows only one "
            "writer at a time: write on rank 0 only (if tf.mpi.rank() == 0)"
        )
    if isinstance(error, subprocess.CalledProcessError):
        return (
            f"all {group.group_size} ranks run the script's commands, so another rank may have "
            "been first. If the command changes files, run it on rank 0 only "
            "(if tf.mpi.rank() == 0), before tf.mpi.barrier()"
        )
    code, path = _errno_and_path(error)
    if path is None or "://" in path:
        return None
    context = (
        f"all {group.group_size} ranks run the script's own file calls, so another rank may have "
        "been first"
    )
    if code in _EXISTS and _changed(path):
        return (
            f"{context}: '{path}' was created during this run. Create it with exist_ok=True, or on "
            "rank 0 only (if tf.mpi.rank() == 0), before tf.mpi.barrier()"
        )
    if code == errno.ENOENT and _changed(os.path.dirname(os.path.abspath(path))):
        return (
            f"{context}: if '{path}' existed, another rank has removed or renamed it. Do that on "
            "rank 0 only (if tf.mpi.rank() == 0), after tf.mpi.barrier(), or allow for it "
            "(missing_ok=True, ignore_errors=True)"
        )
    return None


def _errno_and_path(error: BaseException) -> tuple[int | None, str | None]:
    if isinstance(error, OSError) and isinstance(error.filename, (str, bytes, os.PathLike)):
        return error.errno, os.fsdecode(error.filename)
    for code, pattern in _FILE_ERRORS:
        found = pattern.search(str(error))
        if found:
            return code, found.group(1)
    return None, None


def _changed(path: str) -> bool:
    """Whether a file, or the entries of a folder, have changed since this process started."""
    try:
        return os.stat(path).st_ctime >= _started
    except OSError:
        return False
