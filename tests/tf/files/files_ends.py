"""Saves that only some ranks make, saves that fail, and saves after rank 0 has ended.

    files_ends.py DIR     with a TF_MPI_STALL_TIMEOUT of 6 seconds, each rank its own node

Prints for each case the error, its cause, and the time in seconds.
"""

from __future__ import annotations

import os
import sys
import time
import unittest.mock
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from common import result

DIRECTORY = Path(sys.argv[1])
RANK = tf.mpi.rank()
checkpoint = tf.train.Checkpoint(value=tf.Variable(1.0 + RANK))
outcomes: dict[str, Any] = {}


def save(case: str, name: str, write: Any = checkpoint.write) -> None:
    start = time.monotonic()
    raised, cause = "", None
    try:
        write(DIRECTORY / name)
    except (tf.errors.OpError, OSError, ValueError) as error:
        raised, cause = f"{type(error).__name__}: {error}", error.__cause__
    there = (DIRECTORY / f"{name}.index").exists()
    seconds = time.monotonic() - start
    outcomes[case] = {"raised": raised, "cause": str(cause), "seconds": seconds, "there": there}


(DIRECTORY / "folder.weights.h5").mkdir(exist_ok=True)
(DIRECTORY / "file").touch() if RANK == 0 else time.sleep(0.2)
if RANK == 0:
    save("rank 0 only", "a")
tf.mpi.barrier()
save("all, later", "b")
save("the folder cannot be created", "file/c")
model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
save("a folder", ".", lambda path: model.save_weights(f"{path}/folder.weights.h5"))
save("no such format", "exported", lambda path: model.export(path, format="other"))
save("after a failure", "d")
if RANK != 0:
    save("not rank 0", "e")
else:
    time.sleep(6.5)
save("after an error", "f")
(DIRECTORY / str(RANK)).mkdir()
os.chdir(DIRECTORY / str(RANK))
with unittest.mock.patch("tensorflow.mpi._src.files.waits._SHARED_SECONDS", 0.5):
    save("a folder of each", "/proc/self/cwd/own")
    save("there once more", "/proc/self/cwd/more")
tf.mpi.barrier()
if RANK != 0:
    save("rank 0 has ended", "g")
result(outcomes)
