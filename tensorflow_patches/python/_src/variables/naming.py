"""Declares the names of trained variables in program order, while graphs are built.

The library numbers eager variables with the same debug name in the order in which they are declared
(glue/variables/variable_names.h). Inside tf.function the kernels would declare them in the
executor's order, which differs by rank; the order in which the program creates the Apply ops does
not.
"""

from __future__ import annotations

import collections
import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.runtime import c_api, group, hooks

NAMES = "_tf_mpi_names"  # the attribute of an average op that holds its variables' names

_users_lock = threading.Lock()
# By label: the optimizers that average under it, in the order of first use; guarded by _users_lock.
_users: dict[str, list[weakref.ref[Any]]] = collections.defaultdict(list)


def number_of_user(label: str, user: Any) -> int:
    """The number, from 1, of an optimizer among those that average gradients under `label`, in the
    order in which the program first uses them, which is the same on all ranks."""
    with _users_lock:
        users = _users[label]
        index = next((i for i, one in enumerate(users) if one() is user), len(users))
        if index == len(users):
            users.append(weakref.ref(user))
    return index + 1


def handle_name(handle: Any) -> tuple[str, str]:
    """(container, name) of an eager resource handle, as kernels see them; cached on the handle."""
    known: tuple[str, str] | None = getattr(handle, "_tf_mpi_name", None)
    if known is None:
        from tensorflow.python.eager import context, execute

        with tf.init_scope():
            (result,) = execute.execute(
                b"TfMpiHandleName", 1, inputs=[handle], attrs=None, ctx=context.context()
            )
        container, name = result.numpy()
        known = (container.decode(), name.decode())
        handle._tf_mpi_name = known
    return known


def noted(graph: Any, name: str, make: Callable[[], Any]) -> Any:
    """The attribute `name` of `graph`, in which we note something; the first call creates it."""
    if not hasattr(graph, name):
        setattr(graph, name, make())
    return getattr(graph, name)


def external(graph: Any, tensor: Any) -> Any:
    """The eager tensor that `tensor`, inside nested function graphs, was captured from, or None."""
    while hasattr(graph, "outer_graph") and not _is_eager(tensor):
        tensor = next((out for out, inside in reversed(graph.captures) if inside is tensor), None)
        if tensor is None or _is_eager(tensor):
            return tensor
        graph = tensor.graph
    return tensor if _is_eager(tensor) else None


def _is_eager(tensor: Any) -> bool:
    return hasattr(tensor, "_numpy_internal")


def apply_op_created(graph: Any, op: Any) -> None:
    """Declares the variable of `op`, a new Apply op, and numbers the op. Called by
    apply_ops.apply_op_created."""
    states = [t for t in op.inputs if t.dtype == tf.resource]
    trained = [handle for handle in (external(graph, t) for t in states) if handle is not None]
    if trained and op.inputs[0].dtype == tf.resource:
        container, name = handle_name(trained[0])
        c_api.load().tfmpi_declare_variable(container.encode(), name.encode(), b"")
    _mark(graph, trained)
    _number_occurrence(graph, op)


def variable_trained(graph: Any, variable: Any) -> str:
    """Notes that `graph` (None: eager code) trains `variable`; returns its common name."""
    from tensorflow.python.ops import resource_variable_ops

    if not resource_variable_ops.is_resource_variable(variable):
        return str(variable.op.name)
    handle = variable.handle if graph is None else external(graph, variable.handle)
    if handle is None:
        return state_name(variable.handle.op)
    if not _is_eager(handle):
        return state_name(handle.op)
    if graph is not None:
        _mark(graph, [handle])
    return c_api.variable_name(*handle_name(handle))


def state_name(op: Any) -> str:
    """The name that the kernels use for the variable that `op` creates in a graph."""
    shared = op.get_attr("shared_name").decode() if op.type == "VarHandleOp" else ""
    return shared or str(op.name)


def state_keys(op: Any) -> list[str]:
    """The keys of the variable and slots of `op`, an Apply op in a graph; [] if one is unknown.

    The format is that of glue/variables/variable_names.h; keys of a session have the scope "*",
    explained in glue/variables/initial_broadcast.h.
    """
    if op.inputs[0].dtype._is_ref_dtype:  # its slots are synchronized together with it
        return [f"*|{state_name(op.inputs[0].op)}"]
    keys = []
    for state in (tensor for tensor in op.inputs if tensor.dtype == tf.resource):
        handle = external(op.graph, state)
        if handle is not None:
            keys.append("/".join(handle_name(handle)))
        elif state.op.type == "VarHandleOp":
            keys.append(f"*|{state_name(state.op)}")
        else:
            return []
    return keys


def graph_trains(graph: Any, handles: list[Any]) -> None:
    """Notes that `graph`, which is being built, trains these handles without Apply ops."""
    _mark(graph, [handle for handle in handles if _is_eager(handle)])


def _mark(graph: Any, trained: list[Any]) -> None:
    """Notes on `graph`, and on all enclosing graphs, that they train these handles."""
    while graph is not None and hasattr(graph, "outer_graph"):
        known = noted(graph, "_tf_mpi_trained", dict)
        known.update({id(handle): handle for handle in trained})
        graph._tf_mpi_synchronized = 0  # in no generation yet: see initial_broadcast.py
        graph = graph.outer_graph


def function_first_called(graph: Any, captured: Any) -> None:
    """Called before the first call of a function.

    apply_op_created has not seen Apply ops that come from a SavedModel or an imported graph. If the
    function has such ops, declares all captured variables, in an order that is the same on every
    rank that has loaded the same function.
    """
    graph._tf_mpi_seen = True
    if hasattr(graph, "_tf_mpi_trained") or not _holds_apply_op(graph):
        return
    handles = [t for t in captured if getattr(t, "dtype", None) == tf.resource and _is_eager(t)]
    for handle in handles:
        container, name = handle_name(handle)
        c_api.load().tfmpi_declare_variable(container.encode(), name.encode(), b"")
    _mark(graph, handles)


def _holds_apply_op(graph: Any) -> bool:
    """Whether the graph, or a function that it calls, contains an Apply op."""
    operations = graph.get_operations()
    if any(op.type in hooks.apply_ops for op in operations):
        return True
    return any(calls(op, _is_apply_op) for op in operations if calls_functions(op.type))


def calls_training(op: Any) -> bool:
    """Whether a function that `op` calls, directly or indirectly, trains its inputs.

    It does if it contains Apply ops, or averages of gradients, which may be used without Apply ops.
    """
    return calls(op, lambda node: _is_apply_op(node) or NAMES in node.attr)


def _is_apply_op(node: Any) -> bool:
    return node.op in hooks.apply_ops


def calls(op: Any, wanted: Callable[[Any], bool]) -> bool:
    """Whether a function that `op` calls, directly or indirectly, has a wanted node."""
    todo, seen = set(_called(op.node_def)), set()
    while todo:
        name = todo.pop()
        seen.add(name)
        definition = _function_def(op.graph, name)
        for node in definition.node_def if definition is not None else ():
            if wanted(node):
                return True
            todo.update(called for called in _called(node) if called not in seen)
    return False


def _function_def(graph: Any, name: str) -> Any:
    """The definition of a function; None if neither the graph nor eager code has it."""
    from tensorflow.python.eager import context

    function = graph._get_function(name)
    if function is not None:
        return function.cached_definition
    known = context.context().has_function(name)
    return context.context().get_function_def(name) if known else None


@functools.cache
def calls_functions(op_type: str) -> bool:
    """Whether ops of this type call functions."""
    from tensorflow.python.framework import op_def_registry

    op_def = op_def_registry.get(op_type)
    return op_def is None or any(
        attr.type.endswith("func)") or attr.type == "func" for attr in op_def.attr
    )


def _called(node: Any) -> list[str]:
    """The functions that a node calls."""
    attributes = node.attr.values()
    single = [attr.func.name for attr in attributes if attr.HasField("func")]
    return single + [func.name for attr in attributes for func in attr.list.func]


def function_nested(inner: Any) -> None:
    """Called when a graph being built calls `inner`, which trains or contains a tape."""
    if hasattr(inner, "_tf_mpi_trained"):
        _mark(tf.compat.v1.get_default_graph(), list(inner._tf_mpi_trained.values()))
    if hasattr(inner, "_tf_mpi_tape"):
        mark_tape()


def mark_tape() -> None:
    """Called when a tape is entered during tracing: a call of the function is a forward pass."""
    graph = tf.compat.v1.get_default_graph()
    while graph is not None and hasattr(graph, "outer_graph"):
        graph._tf_mpi_tape = True
        graph = graph.outer_graph


def _number_occurrence(graph: Any, op: Any) -> None:
    counts = noted(graph, "_tf_mpi_counts", collections.Counter)
    kind = op.type.replace("SparseApply", "Apply")  # as in ApplyNode::request_suffix
    key = (kind, op.inputs[0].op.name if hasattr(op.inputs[0], "op") else id(op.inputs[0]))
    counts[key] += 1
    if group.size == 1:
        return
    if counts[key] > 1:
        op._set_attr("_tf_mpi_occurrence", tf.compat.v1.AttrValue(i=counts[key]))
    updates = noted(graph, "_tf_mpi_updates", dict).setdefault(key[1], [])
    updates.append(op)
    # A variable's updates may run in any order, so their kernels must not divide the rows among the
    # ranks and copy the results: another update may still have to change those rows.
    for update in updates[-2:] if len(updates) > 1 else ():
        update._set_attr("_tf_mpi_one_of_many", tf.compat.v1.AttrValue(b=True))
