"""Prints the optimizer ops in TensorFlow's registry and in the library's table."""

from __future__ import annotations

import re

import tensorflow as tf
from common import result
from tensorflow.mpi._src.runtime import c_api
from tensorflow.python.framework import kernels, op_def_registry

PATTERN = re.compile(r"^(Resource)?(Sparse)?Apply[A-Z]")

registry = {}
# An average in a graph is an IdentityN on any device.
registered = len(kernels.get_registered_kernels_for_op("IdentityN").kernel)
for name in ("ResourceScatterAdd", "ResourceScatterSub", "ResourceScatterUpdate"):
    found = kernels.get_registered_kernels_for_op(name).kernel
    registered += sum(k.device_type == "CPU" for k in found)
for name in dir(tf.raw_ops):
    op = op_def_registry.get(name)
    if PATTERN.match(name) and op is not None:
        registry[name] = [arg.name for arg in op.input_arg]
        # For any device: also on a GPU, no op may train per rank.
        registered += len(kernels.get_registered_kernels_for_op(name).kernel)

decorated = c_api.stats()["decorated"]
result(
    {
        "registry": registry,
        "table": c_api.apply_ops(),
        "registered": registered,
        "decorated": decorated,
    }
)
