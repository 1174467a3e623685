"""Apply ops: TensorFlow's optimizer ops, whose kernels average their gradient.

In a graph, Python marks an op when it is created if its gradient was computed from averages; the
kernel then only updates (glue/kernels/apply_kernel.h). In eager code scope.already_averaged() tells
the kernel.
"""

from __future__ import annotations

import threading
from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.average import lineage, scope, script_gradients
from tensorflow.mpi._src.runtime import group, hooks
from tensorflow.mpi._src.variables import naming

# Attributes of a marked op.
_AVERAGED = "_tf_mpi_averaged"  # true; see glue/kernels/apply_kernel.h
_STATES = "_tf_mpi_states"  # keys of its variable and slots; see glue/variables/initial_broadcast.h

created = 0  # the number of Apply ops created in graphs; written under _lock
_lock = threading.Lock()


def apply_op_created(graph: Any, op: Any) -> None:
    """See hooks.apply_op_created.

    Declares the op's variable, so that variables are numbered in program order. Numbers the second
    and further Apply ops of one kind on one variable in one graph. Marks the op if its gradient is
    already an average.
    """
    global created
    with _lock:
        created += 1
    naming.apply_op_created(graph, op)
    if group.size == 1:
        return
    gradient_name, sparse = hooks.apply_ops[op.type]
    inputs = dict(zip((argument.name for argument in op.op_def.input_arg), op.inputs, strict=True))
    # In a replicated step the indices are the same on all ranks, too.
    with_indices = sparse and not scope.is_replicated_step()
    gradient = inputs[gradient_name]
    parts = [gradient, inputs["indices"]] if with_indices else [gradient]
    if not scope.is_inside_already_averaged():
        # The kernel weights all ranks the same; in a weighted step Python makes the average.
        if scope.current_weight() is None:
            script_gradients.resolve(gradient)
        else:
            script_gradients.average_at_its_source(gradient)
        if not all(map(lineage.is_averaged, parts)):
            return
    _mark(op)


def _mark(op: Any) -> None:
    op._set_attr(_AVERAGED, tf.compat.v1.AttrValue(b=True))
    keys = [key.encode() for key in naming.state_keys(op)]
    if keys:
        listed = tf.compat.v1.AttrValue.ListValue(s=keys)
        op._set_attr(_STATES, tf.compat.v1.AttrValue(list=listed))
