"""Summarizes an exception in one line, for the other ranks.

TensorFlow's errors begin with "Graph execution error:" and a list of places; the actual message
follows, then the op. The script's own line is the last place that is not in a package.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import threading
import traceback

_LONGEST = 300  # characters
_UNINFORMATIVE = re.compile(  # beginnings of lines
    r"Graph execution error:|Detected at node|File \"|<stack traces unavailable>|in user code:"
    r"|Exception encountered when calling|Arguments received by|\[\[|\d+ root error"
)
_PLACE = re.compile(r"File \"([^\"]+)\", line (\d+), in (\S+)")
_NODE = re.compile(r"\{\{node ([^}]+)\}\}")
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_STOPPED = re.compile(r"rank \d+/\d+ has stopped: .*")


def reason(error: BaseException) -> str:
    """The error's class, message and op, if it names one, and the script's own line."""
    text = _COLOR.sub("", str(error))
    lines = (line.strip() for line in text.splitlines())
    message = next((line for line in lines if line and not _UNINFORMATIVE.match(line)), "")
    found = _NODE.search(text)
    node = [found[1]] if found is not None and found[0] not in message else []
    where = ", ".join([*node, *_place(error, text)])
    line = f"{type(error).__name__}: {message}".removesuffix(": ")
    return f"{line[: _LONGEST - len(where)]} ({where})" if where else line[:_LONGEST]


def another_ranks_failure(error: BaseException) -> str | None:
    """ "rank 1/2 has stopped: why", if this error reports another rank's failure."""
    found = _STOPPED.search(str(error))
    return None if found is None else found[0]


def place_of_main_thread() -> str:
    """ "train.py:88 in export": where in the script's own code the main thread is; "": unknown."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    ran = [
        (entry.filename, entry.lineno or 0, entry.name) for entry in traceback.extract_stack(frame)
    ]
    own = [place for place in ran if not _is_of_a_package(place[0])]
    return _text(own[-1]) if frame is not None and own else ""


def _text(place: tuple[str, int, str]) -> str:
    path, line, name = place
    inside = "" if name.startswith("<") else f" in {name}"
    return f"{os.path.basename(path)}:{line}{inside}"


def _place(error: BaseException, text: str) -> list[str]:
    """The innermost place in the script's own code: for a graph, where it created the op. [] if it
    has none."""
    quoted = [(path, int(line), name) for path, line, name in _PLACE.findall(text)]
    ran = [
        (frame.filename, frame.lineno or 0, frame.name)
        for frame in traceback.extract_tb(error.__traceback__)
    ]
    for places in (quoted, ran):
        own = [place for place in places if not _is_of_a_package(place[0])]
        if own:
            return [_text(own[-1])]
    return []


def _is_of_a_package(path: str) -> bool:
    known = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return path.startswith(("<", *filter(None, known))) or "site-packages" in path
