"""Every rank appends the same lines to files, now one rank first, now another.

    files_appends.py DIR

DIR has a file "old.csv". Prints what each rank reads of a file while it appends.
"""

from __future__ import annotations

import csv
import json
import logging
import logging.handlers
import os
import pickle
import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from common import result

RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
os.chdir(sys.argv[1])
read: list[str] = []


def turn(number: int) -> None:
    """Lets another rank be first each time; without waiting each third time."""
    tf.mpi.barrier()
    if number % 3:
        time.sleep(0.05 * ((RANK + number) % tf.mpi.size()))


open("emptied.csv", "w").close()
logging.basicConfig(filename="train.log", level=logging.INFO, format="%(message)s")
by_size = logging.handlers.RotatingFileHandler("by_size.log", maxBytes=40, backupCount=9)
by_day = logging.handlers.TimedRotatingFileHandler("by_day.log", when="D", utc=True)
rolled = logging.Logger("rolled")
rolled.handlers = [by_size, by_day]
kept = open("kept.txt", "a", buffering=1)  # noqa: SIM115, stays open
for epoch in range(6):
    turn(epoch)
    for name in ("old.csv", "new.csv", "emptied.csv"):
        with open(name, "a") as file:
            if not file.tell():
                file.write("epoch,loss\n")
            file.write(f"{epoch},{1 / (epoch + 1)}\n")
    with open("same.txt", "a") as file:
        file.write("done\n")
    logging.info("epoch %d", epoch)
    if epoch % 2:
        by_day.rolloverAt = 86400 * epoch
    for step in range(3):
        rolled.info("step %d of epoch %d", step, epoch)
    kept.write(f"epoch {epoch}\nof 6\n")
    turn(epoch + 1)
    there = os.path.exists("rows.csv")  # on some ranks only
    with open("rows.csv", "a", newline="") as file:
        csv.writer(file).writerows([[epoch, 0.5]] if there else [["epoch", "loss"], [epoch, 0.5]])
    with tf.io.gfile.GFile("gfile.txt", "a") as gfile:
        gfile.write(f"epoch {epoch} of {6}\n")
    with open("pickles", "ab") as binary:
        pickle.dump({"epoch": epoch}, binary)
    with open("arrays.npy", "ab") as binary:
        np.save(binary, np.arange(epoch, epoch + 5))
    turn(epoch + 2)
    there = os.path.exists("history.json")
    history = json.loads(Path("history.json").read_text()) if there else []
    Path("history.json").write_text(json.dumps([*history, epoch]))
    with open("both.txt", "a+") as both:
        both.write(f"{epoch}\n")
        both.seek(0)
        read.append(both.read().splitlines()[epoch])
if RANK == tf.mpi.size() - 1:
    Path("last.txt").open("a").write("by one rank\n")
if "differ" in sys.argv:
    with open("differ.txt", "a") as file:
        file.write("for all\n")
        file.flush()
        file.write(f"of rank {RANK}\n")
tf.mpi.barrier()
result({"read": read})
