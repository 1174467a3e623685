"""Binds itself to one core before TensorFlow is imported, like mpirun --bind-to core; prints the
threads that TensorFlow and the engine started, and their affinities.

affinity.py free   does not bind itself
"""

from __future__ import annotations

import os
import sys

CORES = sorted(os.sched_getaffinity(0))
MINE = CORES[int(os.environ["OMPI_COMM_WORLD_RANK"]) % len(CORES)]
if "free" not in sys.argv:
    os.sched_setaffinity(0, {MINE})

import tensorflow as tf  # noqa: E402
from common import result  # noqa: E402
from tensorflow.mpi._src.runtime import c_api  # noqa: E402

matrix = tf.random.normal([400, 400])
tf.function(lambda x: x @ x)(matrix)
tf.mpi.allreduce(matrix, name="m")

threads: dict[str, int] = {}
masks = set()
for task in os.listdir("/proc/self/task"):
    with open(f"/proc/self/task/{task}/comm", encoding="utf-8") as file:
        name = file.read().strip()
    threads[name] = threads.get(name, 0) + 1
    if name.startswith("tf_"):
        masks.add(frozenset(os.sched_getaffinity(int(task))))
result({
    "cores": c_api.node_cores(),
    "threads": threads,
    "stay": masks == {frozenset({MINE})},
    "openmp": os.environ.get("OMP_NUM_THREADS"),
})  # fmt: skip
