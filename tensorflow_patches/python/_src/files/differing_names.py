"""Warns at exit if ranks have written one file of the script under different names.

A script that numbers its runs takes the first free number. Ranks look for it while other ranks
write, so each may find a different one. Names from the clock can also differ.
Rank 0 posts the names of the files that it writes; rank 1 compares them with its own at exit.
"""

from __future__ import annotations

import os
import re
from typing import Any

from tensorflow.mpi._src.files import names, waits
from tensorflow.mpi._src.runtime import group, log

_WRITES = "writes "
_MAX_FILES = 100  # files of a rank that are compared: the first that it writes
_NUMBER = re.compile(r"[\W_]*\d+")
_made: dict[str, str] = {}  # names.pattern of a path -> the path; on ranks 0 and 1


def note(path: Any) -> None:
    """Records that the script writes the file `path` or appends to it."""
    if group.rank > 1 or group.size == 1 or len(_made) == _MAX_FILES:
        return
    own = os.path.abspath(os.fsdecode(path))
    pattern = names.pattern(own)
    if pattern not in _made:
        _made[pattern] = own
        if group.rank == 0:
            waits.post(f"{_key(pattern)}\n{pattern}")


def _key(path: str) -> str:
    """The same for paths that differ only in numbers."""
    return _WRITES + _NUMBER.sub("", path)


def warn_of_other_names() -> None:
    """Called on rank 1, at exit; unless this rank has failed, every post of rank 0 has arrived."""
    for pattern, own in _made.items():
        posted = waits.posted_texts(_key(pattern))
        other = next((path for path in posted if path not in _made), None)
        if other is None or pattern in posted or not os.path.lexists(own):
            continue
        log.once(
            f"rank 0 has written '{other}' and rank 1 '{own}'. If these should be one file, the "
            "script takes its name from the clock, or takes the first free name; both differ by "
            "rank: pass the name to the script, or use rank 0's number, "
            "int(tf.mpi.broadcast(number))",
            key="other names",
            every_rank=True,
        )
