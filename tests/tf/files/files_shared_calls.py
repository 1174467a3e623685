"""Every rank makes the script's calls that change paths, one rank after another or all at once.

    files_shared_calls.py DIR

Prints what is left in DIR, and the calls that fail.
"""

from __future__ import annotations

import functools
import os
import pickle
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf
from common import result

FOLDER = Path(sys.argv[1]) / "calls"
RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
failed: list[str] = []
moved: list[str] = []


def call(what: str, function: Callable[[], object]) -> None:
    try:
        function()
    except (OSError, tf.errors.OpError) as error:
        failed.append(f"{what}: {type(error).__name__}")


def move(source: Any, target: Any) -> str:
    returned = shutil.move(source, target)
    assert returned is target
    return str(returned)


def replaces(epoch: int) -> None:
    """Saves as programs do that want whole files."""
    (FOLDER / "state.tmp").write_text(f"epoch {epoch}")
    os.replace(FOLDER / "state.tmp", FOLDER / "state")


FOLDER.mkdir(parents=True, exist_ok=True)
(FOLDER / "old").mkdir(exist_ok=True)
for number in range(200):
    (FOLDER / "old" / f"{number}").touch()
(FOLDER / "there").mkdir(exist_ok=True)
for name in ("gone", "moved", "renamed", "removed"):
    (FOLDER / name).write_text(name)
tf.mpi.barrier()

call("rmtree", lambda: shutil.rmtree(FOLDER / "old"))  # all ranks at once
tf.mpi.barrier()
time.sleep(RANK / 4)
call("makedirs", lambda: os.makedirs(FOLDER / "run" / "logs"))
call("mkdir", (FOLDER / "run" / "models").mkdir)
call("remove", lambda: os.remove(FOLDER / "gone"))
call("move", lambda: moved.append(shutil.move(str(FOLDER / "moved"), str(FOLDER / "run"))))
call("rename", lambda: (FOLDER / "renamed").rename(FOLDER / "run" / "new"))
call("gfile", lambda: tf.io.gfile.mkdir(str(FOLDER / "gfile")))
call("gfile.remove", lambda: tf.io.gfile.remove(str(FOLDER / "removed")))
call("symlink", lambda: (FOLDER / "link").symlink_to("run"))
tf.mpi.barrier()
for epoch in range(50):
    call("replace", functools.partial(replaces, epoch))

# The last rank comes late, when the first has done all of this.
tf.mpi.barrier()
time.sleep(RANK)
late: list[str] = []
(FOLDER / "log").write_text("old")
call("rotate", lambda: os.rename(FOLDER / "log", FOLDER / "log.1"))
(FOLDER / "log").write_text("new")
for number in range(3):
    (FOLDER / "version").write_text(f"version {number} " + "x" * (3 - number))
    replaces(50 + number)
    call("rmtree of a new one", functools.partial(shutil.rmtree, FOLDER / "fresh", number == 0))
    call("makedirs of a new one", lambda: os.makedirs(FOLDER / "fresh" / "a"))
    (FOLDER / "fresh" / "a" / f"{number}").write_text("")
    (FOLDER / "temporary").write_text("own")
    late.append((FOLDER / "temporary").read_text())
    call("remove of a temporary one", (FOLDER / "temporary").unlink)
if RANK == 0:
    (FOLDER / "fresh" / "of rank 0").touch()
tf.mpi.barrier()

# These fail on one process, too.
call("mkdir again", (FOLDER / "run" / "models").mkdir)
call("mkdir of an old one", (FOLDER / "there").mkdir)
call("remove again", lambda: os.remove(FOLDER / "gone"))
call("remove of none", lambda: os.remove(FOLDER / "none"))
call("rename into none", lambda: os.rename(FOLDER / "state", FOLDER / "none" / "state"))
tf.mpi.barrier()
unpacked = Path(tempfile.mkdtemp(dir=FOLDER))  # the names differ
(unpacked / "file").write_text("unpacked")
call("move of an own folder", lambda: moved.append(move(unpacked, FOLDER / "unpacked")))
for epoch in range(20):
    descriptor, name = tempfile.mkstemp(dir=FOLDER)
    os.write(descriptor, str(epoch).encode())
    os.close(descriptor)
    call("replace by an own file", functools.partial(os.replace, name, FOLDER / "whole"))
tf.mpi.barrier()
with tempfile.TemporaryDirectory(dir=FOLDER) as own:
    own_is_new = not os.listdir(own)
    (Path(own) / "file").touch()
tf.mpi.barrier()
left = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*"))
for function in (os.remove, os.replace, shutil.rmtree, open):
    assert pickle.loads(pickle.dumps(function)) is function  # noqa: S301
state = (FOLDER / "state").read_text()
late_files = {
    "late": late,
    "logs": [(FOLDER / name).read_text() for name in ("log", "log.1")],
    "version": (FOLDER / "version").read_text(),
    "whole": (FOLDER / "whole").read_text(),
}
result(
    {
        "left": left,
        "failed": failed,
        "state": state,
        "moved": [os.path.relpath(path, FOLDER) for path in moved],
        "own_is_new": own_is_new,
        **late_files,
    }
)
