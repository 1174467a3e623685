"""Files for communication between the ranks of a node, which other users cannot create or change.

In a shared folder such as /tmp, any user can create a file with a predictable name first. So the
files are in one folder of this user. Its owner and mode are checked on the open folder, and files
are opened relative to that, so they can be trusted as well.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile


def open_file(name: str, flags: int = 0) -> int:
    """Opens, or creates, the file of this name for reading and writing; the caller closes it.

    Raises PermissionError if the folder is not this user's alone.
    """
    path = os.path.join(tempfile.gettempdir(), f"tensorflow-mpi-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise PermissionError(_advice(path, "is not a folder")) from error
    try:
        status = os.fstat(folder)
        if status.st_uid != os.getuid():
            raise PermissionError(_advice(path, f"belongs to user {status.st_uid}"))
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise PermissionError(_advice(path, "is accessible to others"))
        return os.open(name, flags | os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    finally:
        os.close(folder)


def _advice(path: str, what: str) -> str:
    return (
        f"'{path}', which the ranks of a node use to coordinate, {what}: remove it, or set TMPDIR "
        "to your own folder"
    )


def digest(path: str) -> str:
    """A hash of a file's content; of a folder, into which the script may write, its identity."""
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        return f"folder {status.st_dev} {status.st_ino}"
    found = hashlib.sha256()
    with open(path, "rb") as content:
        while block := content.read(1 << 20):
            found.update(block)
    return found.hexdigest()
