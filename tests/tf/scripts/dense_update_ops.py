"""Every dense optimizer op on variables of which each rank has a share: prints the arrays.

dense_update_ops.py resource
"""

from __future__ import annotations

import optimizer_ops as ops
import tensorflow as tf
from common import result, single_threaded_ops
from tensorflow.mpi._src.runtime import c_api

ops.SHAPE = (13, 10)  # no whole number of cache lines, nor of packets
ops.STEPS = 5


def main() -> None:
    single_threaded_ops(inter_op=2)
    tf.compat.v1.disable_eager_execution()
    cases = [case for case in ops.make_cases() if case.dtype in (tf.float32, tf.float64)]
    for case in cases:
        case.create()
    arrays = ops.trained(cases)
    divisible = [case for case in cases if "use_locking" not in case.attributes]
    result(
        {
            "arrays": arrays,
            "divided": c_api.stats()["divided"],
            "divisible": len(divisible) * (ops.STEPS - 1),
        }
    )


main()
