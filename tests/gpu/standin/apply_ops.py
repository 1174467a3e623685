"""Every optimizer op, dtype and index type with a GPU kernel, on ranks with simulated GPUs.

    mpirun -np 2 tests/gpu/standin/run.sh PYTHON tests/gpu/standin/apply_ops.py [NAME...]

With NAMEs, only these ops.

Each rank feeds other gradients. After an op its variables must equal rank 0's, and the GPU's memory
must contain the mean of the ranks' gradients. Exits with the number of kernels that differ.
"""

from __future__ import annotations

import ctypes
import sys
import time
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import kernels, op_def_registry

RANK, SIZE = tf.mpi.rank(), tf.mpi.size()
SHAPE = (4, 16)
NUMBERS = set(
    "lr alpha beta1_power beta2_power beta1 beta2 epsilon rho momentum l1 l2 l2_shrinkage lr_power "
    "logbase sign_decay beta".split()
)
GIVEN = NUMBERS | {"grad", "delta", "global_step", "indices"}
standin = ctypes.CDLL("libcuda.so.1")


def on_gpu(values: np.ndarray) -> bool:
    values = np.ascontiguousarray(values)
    pointer = values.ctypes.data_as(ctypes.c_void_p)
    for _ in range(20):  # streams may lag behind
        if standin.standin_holds(pointer, ctypes.c_size_t(values.nbytes)):
            return True
        time.sleep(0.003)
    return False


def differs(op: str, dtype: Any, index_type: Any, number: int) -> list[str]:
    """The errors after one step of an op, with numbers that only this kernel uses."""

    def draw(rank: int, what: int) -> np.ndarray:
        values = np.random.default_rng([number, rank, what]).integers(1, 30, size=SHAPE)
        return values.astype(dtype.as_numpy_dtype)

    names = [arg.name for arg in op_def_registry.get(op).input_arg]
    states = {
        name: tf.Variable(draw(RANK, 100 + i)) for i, name in enumerate(names) if name not in GIVEN
    }
    given = {
        "grad": tf.constant(draw(RANK, 0)),
        "delta": tf.constant(draw(RANK, 0)),
        "indices": tf.constant(list(range(SHAPE[0])), index_type),
        "global_step": tf.constant(1, tf.int64),
        **{name: tf.constant(0.5, dtype) for name in NUMBERS},
        **{name: variable.handle for name, variable in states.items()},
    }
    getattr(tf.raw_ops, op)(**{name: given[name] for name in names})
    drawn = [draw(rank, 0) for rank in range(SIZE)]
    mean = (np.sum(drawn, axis=0) / SIZE).astype(dtype.as_numpy_dtype)
    # A sparse average may be the rows of all ranks, each divided by the number of ranks.
    rows = np.concatenate([part / SIZE for part in drawn]).astype(dtype.as_numpy_dtype)
    wrong = []
    if not on_gpu(mean) and not ("indices" in names and on_gpu(rows)):
        wrong.append("no average on the GPU")
    for name, variable in states.items():
        if not np.array_equal(variable.numpy(), draw(0, 100 + names.index(name))):
            wrong.append(f"{name} is not rank 0's")
    return wrong


def main() -> int:
    tried = failed = 0
    for op in sorted(dir(tf.raw_ops)):
        if not op.startswith(("ResourceApply", "ResourceSparseApply")):
            continue
        if sys.argv[1:] and op not in sys.argv[1:]:
            continue
        for kernel in kernels.get_registered_kernels_for_op(op).kernel:
            if kernel.device_type != "GPU":
                continue
            types = {c.name: tf.as_dtype(c.allowed_values.list.type[0]) for c in kernel.constraint}
            tried += 1
            with tf.device("GPU:0"):
                wrong = differs(op, types["T"], types.get("Tindices", tf.int32), tried)
            failed += bool(wrong)
            for line in wrong:
                print(f"rank {RANK}: {op} {types}: {line}", flush=True)
    print(f"rank {RANK}: {tried} kernels, {failed} differ", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
