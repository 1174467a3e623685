"""An average of values that bfloat16 cannot distinguish, and one that it can represent."""

from __future__ import annotations

import tensorflow as tf
from common import result

rank = tf.mpi.rank()
average = tf.mpi.allreduce(tf.fill([70000], 1 + 0.002 * rank), name="close", op="average")
exact = tf.mpi.allreduce(tf.fill([70000], 1.0 + rank), name="exact", op="average")
values = sorted(set(average.numpy().tolist()))
result({"average": values, "exact": sorted(set(exact.numpy().tolist()))})
