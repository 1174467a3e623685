"""Why a file call of the script's own may have failed here: every rank makes it, on one disk.

os.makedirs, os.remove, os.rename, open and their like are the script's, and run on all ranks. The
second rank finds made what it makes, and gone what it removes.
"""

from __future__ import annotations

import errno
import os
import re
import time

from tensorflow.mpi._src.files import saves
from tensorflow.mpi._src.lifecycle import ends
from tensorflow.mpi._src.runtime import group

_started = time.time()
_EXISTS = (errno.EEXIST, errno.ENOTEMPTY)
# What libraries say of a file in errors that hold no file name.
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
    """Of an error that nobody has caught; None if it is not of this kind."""
    if "unable to lock file" in str(error):
        anew = ", or make it anew: h5py.File(path, 'w')" if saves.shared() else ""
        return (
            f"all {group.group_size} ranks open a file to change it, and HDF5 lets one do so: "
            f"change it on rank 0 alone (if tf.mpi.rank() == 0){anew}"
        )
    if "database is locked" in str(error):
        return (
            f"all {group.group_size} ranks write to one database, and SQLite lets one do so at a "
            "time: write on rank 0 alone (if tf.mpi.rank() == 0)"
        )
    code, path = _missing_or_there(error)
    if path is None or "://" in path:
        return None
    who = f"all {group.group_size} ranks run the script's own file calls, and one may be first"
    if code in _EXISTS and _changed(path):
        return f"{who}: '{path}' was made during this run. Make it with exist_ok=True"
    if code == errno.ENOENT and _changed(os.path.dirname(os.path.abspath(path))):
        return (
            f"{who}: if '{path}' was there, another rank has removed or renamed it. Do that on "
            "rank 0 alone (if tf.mpi.rank() == 0), after tf.mpi.barrier(), or allow for it "
            "(missing_ok=True, ignore_errors=True)"
        )
    return None


def _missing_or_there(error: BaseException) -> tuple[int | None, str | None]:
    if isinstance(error, OSError) and isinstance(error.filename, (str, bytes, os.PathLike)):
        return error.errno, os.fsdecode(error.filename)
    for code, pattern in _FILE_ERRORS:
        found = pattern.search(str(error))
        if found:
            return code, found.group(1)
    return None, None


def _changed(path: str) -> bool:
    """Since this process has started: of a folder, what it holds."""
    try:
        return os.stat(path).st_ctime >= _started
    except OSError:
        return False
