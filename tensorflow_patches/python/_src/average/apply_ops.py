"""Apply ops: TensorFlow's optimizer ops, whose kernels average their gradient.

If the gradient was computed from averages, Python marks the op when it is created, and the kernel
only updates (glue/kernels/apply_kernel.h). In eager code already_averaged() does that.
"""

from __future__ import annotations

import threading
from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.average import lineage, scope, script_gradients
from tensorflow.mpi._src.runtime import group, hooks
from tensorflow.mpi._src.variables import naming

_AVERAGED = "_tf_mpi_averaged"  # an Apply op's; glue/kernels/apply_kernel.h
_STATES = "_tf_mpi_states"  # ... the keys of what it updates; glue/variables/initial_broadcast.h

created = 0  # Apply ops in graphs; written under _lock
_lock = threading.Lock()


def apply_op_created(graph: Any, op: Any) -> None:
    """See hooks.apply_op_created.

    Declares its variable, so that variables are numbered in program order. Numbers the second and
    further Apply ops of one kind on one variable in one graph. Marks ops whose gradient is already
    an average.
    """
    global created
    with _lock:
        created += 1
    naming.apply_op_created(graph, op)
    if group.size == 1:
        return
    name, sparse = hooks.apply_ops[op.type]
    inputs = dict(zip((argument.name for argument in op.op_def.input_arg), op.inputs, strict=True))
    # In a replicated step the indices are the same on all ranks, too.
    with_indices = sparse and not scope.is_replicated_step()
    gradient = [inputs[name], inputs["indices"]] if with_indices else [inputs[name]]
    if not scope.is_inside_already_averaged():
        # The kernel weights all ranks the same; in a weighted step Python makes the average.
        take = (
            script_gradients.resolve
            if scope.current_weight() is None
            else script_gradients.average_at_its_source
        )
        take(inputs[name])
        if not all(map(lineage.is_averaged, gradient)):
            return
    _mark(op)


def _mark(op: Any) -> None:
    op._set_attr(_AVERAGED, tf.compat.v1.AttrValue(b=True))
    keys = [key.encode() for key in naming.state_keys(op)]
    if keys:
        listed = tf.compat.v1.AttrValue.ListValue(s=keys)
        op._set_attr(_STATES, tf.compat.v1.AttrValue(list=listed))
