"""Rotating handlers of Python's logging: the first rank of a node to rotate the logs does it.

When a late rank rotates, another rank has already renamed the log; the late rank would mistake it
for an older log, and remove it or rename it once more. So the late rank renames nothing, and
continues in the log that the other rank began at that rotation, which may have been renamed since.
"""

from __future__ import annotations

import collections
import functools
import os
import time
from typing import Any

from tensorflow.mpi._src.files import appends, journal, saves, shared_calls

_rotations: collections.Counter[str] = collections.Counter()  # of this rank, by path


def rolling(do_rollover: Any) -> Any:
    """Wraps doRollover of RotatingFileHandler and TimedRotatingFileHandler."""

    @functools.wraps(do_rollover)
    def roll(self: Any) -> None:
        by_time = hasattr(self, "rolloverAt")
        if not saves.shared() or not (by_time or self.backupCount):  # nothing is renamed
            return do_rollover(self)
        path, key = self.baseFilename, f"logs {self.baseFilename}"
        with appends.alone_on_node():
            # The number of this rotation, the same on all ranks: within making_all(), the renames
            # of do_rollover are not counted.
            _rotations[path] += 1
            number = _rotations[path]
            appends.note_truncation(path)
            # Inode 0: this rank only reads what the others have published.
            published = [line.split() for line in journal.publish(key, f"{number} 0")]
            begun = {int(one): int(inode) for one, inode in published if inode != "0"}
            if number not in begun:
                with shared_calls.making_all():
                    do_rollover(self)
                if self.stream is None:
                    self._open().close()
                journal.publish(key, f"{number} {os.stat(path).st_ino}")
                return None
            if self.stream:
                self.stream.close()
            # The inode of a log that was removed may be that of a later one.
            later = any(begun[one] == begun[number] for one in begun if one > number)
            with appends.renamed(path, os.devnull if later else _find(path, begun[number])):
                self.stream = self._open()
        if by_time:
            self.rolloverAt = self.computeRollover(int(time.time()))
        return None

    return roll


def _find(path: str, inode: int) -> str:
    """Where the log with this inode, begun as `path`, is now; os.devnull if it was removed."""
    with os.scandir(os.path.dirname(path)) as entries:
        return next((entry.path for entry in entries if entry.inode() == inode), os.devnull)
