"""Allocates and frees 100 MB five times; prints the pages that the last four times fetched.

Then 8 MB in small tensors, twice; prints what of it the allocator still counts as in use when they
have been freed, and by how much that number rises when they are made anew.
"""

from __future__ import annotations

import ctypes
import resource

import tensorflow as tf
from common import result

BYTES = 100 * 2**20


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def step() -> None:
    with tf.device("CPU:0"):
        tf.fill([BYTES // 4], 1.0)  # freed at once


class Mallinfo2(ctypes.Structure):
    """Of glibc 2.33 and newer, malloc.h."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks")
        + ("uordblks", "fordblks", "keepcost")
    )


mallinfo2 = ctypes.CDLL(None).mallinfo2
mallinfo2.restype = Mallinfo2


def small() -> list[tf.Tensor]:
    with tf.device("CPU:0"):
        return [tf.fill([1000], 1.0) for _ in range(2000)]


step()
before = faults()
for _ in range(4):
    step()
found = {"faults": faults() - before}
unused = mallinfo2().uordblks
tensors = small()
del tensors
found["waiting"] = (waiting := mallinfo2().uordblks) - unused
tensors = small()
found["anew"] = mallinfo2().uordblks - waiting
result(found)
