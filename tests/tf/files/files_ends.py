"""Saves that only some ranks make, saves that fail, and saves after rank 0's end.

    files_ends.py DIR     with a TF_MPI_STALL_TIMEOUT of 2 seconds

Prints by case what was raised and after how many seconds.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import tensorflow as tf
from common import result

DIRECTORY = Path(sys.argv[1])
RANK = tf.mpi.rank()
checkpoint = tf.train.Checkpoint(value=tf.Variable(1.0 + RANK))
outcomes: dict[str, Any] = {}


def save(case: str, name: str) -> None:
    start = time.monotonic()
    raised = ""
    try:
        checkpoint.write(DIRECTORY / name)
    except (tf.errors.OpError, OSError) as error:
        raised = f"{type(error).__name__}: {error}"
    there = (DIRECTORY / f"{name}.index").exists()
    outcomes[case] = {"raised": raised, "seconds": time.monotonic() - start, "there": there}


(DIRECTORY / "file").touch() if RANK == 0 else time.sleep(0.2)
if RANK == 0:
    save("rank 0 only", "a")
tf.mpi.barrier()
save("all, later", "b")
save("no folder can be made", "file/c")
save("after a failure", "d")
if RANK != 0:
    save("not rank 0", "e")
else:
    time.sleep(2.5)
save("after an error", "f")
tf.mpi.barrier()
if RANK != 0:
    save("rank 0 has ended", "g")
result(outcomes)
