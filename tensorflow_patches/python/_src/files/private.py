"""Files by which the ranks of a node talk, in a place where nobody else can put or change one.

In a shared folder, as /tmp, a name that can be guessed is anybody's: who makes it first owns it.
So there is one folder of this user's, and what lies in it is trusted since the folder is: its
owner and mode are looked at through the open folder, and files are opened by way of that.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile


def open_file(name: str) -> int:
    """Opens, or makes, the file of this name for reading and writing; the caller closes it.

    Raises PermissionError if the folder is another user's, or others may write to it.
    """
    path = os.path.join(tempfile.gettempdir(), f"tensorflow-mpi-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise PermissionError(_advice(path, "is no folder")) from error
    try:
        status = os.fstat(folder)
        if status.st_uid != os.getuid():
            raise PermissionError(_advice(path, f"is user {status.st_uid}'s"))
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise PermissionError(_advice(path, "is open to others"))
        return os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    finally:
        os.close(folder)


def _advice(path: str, what: str) -> str:
    return (
        f"'{path}', by which the ranks of a node take turns, {what}: remove it, or set TMPDIR to a "
        "folder of your own"
    )


def digest(path: str) -> str:
    """Of what a file holds. Of a folder, in which the script may write, only which one it is."""
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        return f"folder {status.st_dev} {status.st_ino}"
    found = hashlib.sha256()
    with open(path, "rb") as content:
        while block := content.read(1 << 20):
            found.update(block)
    return found.hexdigest()
