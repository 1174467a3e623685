"""Ranks that wait for rank 1, at the start or at the end.

waits.py settings    rank 1 has other settings
waits.py off         rank 1 was started with TF_MPI_ENABLE=0
waits.py off later   rank 1 turns averaging off itself before it imports tensorflow
waits.py gone        rank 1 exits with code 0 before it imports tensorflow
waits.py late        rank 1 does not import tensorflow
waits.py idle        rank 1 does not end and is idle
waits.py work        rank 1 ends later and works meanwhile
waits.py stopped     rank 1 does not end because it is stopped
waits.py orphans     no rank ends: the launcher is killed
"""

from __future__ import annotations

import os
import signal
import sys
import time

MODE = sys.argv[1]
RANK = int(os.environ["OMPI_COMM_WORLD_RANK"])
LATE = 60  # seconds: longer than any wait of the tests
WORK = 7  # seconds

# Settings that may differ, in every mode.
os.environ["TF_NUM_INTEROP_THREADS"] = str(1 + RANK)
if RANK == 0:  # as if a program that has imported TensorFlow started mpirun; not on other nodes
    os.environ["TF2_BEHAVIOR"] = "1"
os.environ["XLA_FLAGS"] = f"--xla_dump_to=/nowhere/{RANK} --xla_cpu_enable_fast_math=false"
if RANK == 1:
    if MODE == "settings":
        os.environ |= {
            "TF_MPI_SPARSE": "dense",
            "TF_MPI_TOPOLOGY": "flat",
            "TF_MPI_FUSION_THRESHOLD": "4096k",  # rank 0 has 4m
            "TF_ENABLE_ONEDNN_OPTS": "0",
            "XLA_FLAGS": "--xla_cpu_enable_fast_math=true",
        }
    elif MODE == "off" and "TF_MPI_ENABLE" not in os.environ:
        os.environ["TF_MPI_ENABLE"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    elif MODE == "off later":
        os.environ["TF_MPI_ENABLE"] = "0"
    elif MODE == "gone":
        sys.exit(0)
    elif MODE == "late":
        time.sleep(LATE)
else:
    os.environ |= {"TF_MPI_FUSION_THRESHOLD": "4m"}

import tensorflow as tf  # noqa: E402

if MODE.startswith("off"):
    time.sleep(LATE)  # for rank 1 only
total = float(tf.mpi.allreduce(1.0 + RANK, name="total", op="sum"))
print(f"TOTAL {total}\nAT {time.time()}", flush=True)
if MODE == "orphans":
    time.sleep(LATE)
if RANK == 1:
    if MODE == "idle":
        time.sleep(LATE)
    elif MODE == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif MODE == "work":
        end = time.monotonic() + WORK
        while time.monotonic() < end:
            pass
