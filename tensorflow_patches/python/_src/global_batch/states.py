"""State that a step changes besides the optimizer's: metrics, moving averages, the script's own.

A metric's state is a sum over samples, to which each rank adds its own, or it is computed from the
whole batch and the same on every rank (sites.Plan.whole_states). A step on a stand-in, on a rank
without samples, leaves unchanged what depends on the stand-in's samples. What does not depend on
samples (a counter, a teacher that follows the weights) is the same on every rank.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.average import carrier
from tensorflow.mpi._src.global_batch import kinds
from tensorflow.mpi._src.global_batch.batch import Part
from tensorflow.mpi._src.runtime import hooks
from tensorflow.mpi._src.variables import naming, unwrap

ASSIGNS = {  # ops that change a variable or a table
    *hooks.ASSIGN_OPS,
    *("LookupTableInsertV2", "LookupTableImportV2", "LookupTableRemoveV2"),
}
_READS = {"ReadVariableOp", "VarHandleOp", "Const"}


@contextlib.contextmanager
def restored_after_stand_in(model: Any, part: Part) -> Iterator[None]:
    """Around a step: if its samples do not count, undoes the changes of state that they make."""
    if part.counts is None:
        yield
        return
    metrics = list(model.metrics)
    summed = _values(variable for metric in metrics for variable in metric.variables)
    others = _values(model.non_trainable_variables)
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    first = 0 if graph is None else len(graph.get_operations())
    yield
    same_on_ranks = {id(variable) for variable in part.whole_states}
    if graph is None:
        averages = {id(unwrap.tf_variable(v)) for v in _moving_averages(model)}
        changed = {id(variable.handle) for variable, _ in others if id(variable) in averages}
    else:
        changed = _assigned_from_samples(graph, graph.get_operations()[first:], part)
    before = [pair for pair in summed if id(pair[0]) not in same_on_ranks]
    of_metrics = {id(variable) for variable, _ in summed}
    before += [
        (variable, value)
        for variable, value in others
        if id(variable.handle) in changed and id(variable) not in of_metrics
    ]
    if before:
        _restore_unless(part.counts, before)


def _values(variables: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Each tf.Variable once, with a copy of its value."""
    found = [unwrap.tf_variable(variable) for variable in variables]
    return [
        (variable, tf.identity(variable))
        for variable in {id(v): v for v in found}.values()
        if isinstance(variable, tf.Variable)
    ]


def _restore_unless(counts: Any, before: list[tuple[Any, Any]]) -> None:
    def restore() -> Any:
        for variable, value in before:
            variable.assign(value)
        return tf.constant(0)

    tf.cond(counts, lambda: tf.constant(0), restore)


def batch_norms(model: Any) -> list[Any]:
    """The layers that normalize by the moments of a batch."""
    layers = model._flatten_layers() if hasattr(model, "_flatten_layers") else ()
    return [
        layer for layer in layers if hasattr(layer, "moving_mean") and hasattr(layer, "_moments")
    ]


def _moving_averages(model: Any) -> list[Any]:
    """Batch norms' moving averages: in eager code, the only state known to depend on samples."""
    return [
        variable
        for layer in batch_norms(model)
        if not getattr(layer, "_tf_mpi_synchronized", False)
        for variable in layer.non_trainable_variables
    ]


def _assigned_from_samples(graph: Any, operations: Iterable[Any], part: Part) -> set[int]:
    """Ids of the handles of variables to which `operations` assign values of this rank's samples.

    A value that has passed an average or a gathering is the same on every rank.
    """
    leaves = {
        kinds.key(leaf)
        for leaf in tf.nest.flatten(part.data, expand_composites=True)
        if isinstance(leaf, tf.Tensor) and hasattr(leaf, "graph") and leaf.graph is graph
    }
    handles = _handles(graph)
    found = set()
    for op in operations:
        if op.type not in ASSIGNS or kinds.key(op.inputs[0]) not in handles:
            continue
        if any(_leads_to(value, leaves) for value in op.inputs[1:]):
            found.add(id(handles[kinds.key(op.inputs[0])]))
    return found


def _handles(graph: Any) -> dict[Any, Any]:
    """The outer tensors that a function's `graph` captures, by the keys of the inner ones."""
    captures = getattr(graph, "captures", ())
    return {kinds.key(inside): kinds.origin(outside) for outside, inside in captures}


def assigned(graph: Any, operations: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """The variables that `operations` of a function's `graph` change: (outer handle, added tensor).

    The tensor is None if the variable is set, or if the added value is unknown, as in another
    function.
    """
    handles = _handles(graph)
    for op in operations:
        if op.type in ASSIGNS:
            handle = handles.get(kinds.key(op.inputs[0]))
            if handle is not None:
                yield handle, _added(op)
        elif naming.calls(op, lambda node: node.op in ASSIGNS):
            for source in op.inputs:
                if kinds.key(source) in handles and source.dtype.name == "resource":
                    yield handles[kinds.key(source)], None


def reads(graph: Any, tensor: Any, handles: set[int]) -> bool:
    """Whether `tensor` is computed from a variable whose handle has one of these ids."""
    inner = {which for which, handle in _handles(graph).items() if id(handle) in handles}
    values = {
        kinds.key(op.outputs[0])
        for op in graph.get_operations()
        if op.type == "ReadVariableOp" and kinds.key(op.inputs[0]) in inner
    }
    return _leads_to(tensor, inner | values)


def _added(op: Any) -> Any:
    """The tensor that `op`, an assignment, adds to its variable; None if it does not only add."""
    if op.type == "AssignAddVariableOp":
        return op.inputs[1]
    value = op.inputs[1].op if op.type == "AssignVariableOp" else None
    while value is not None and value.type == "Identity":
        value = value.inputs[0].op
    if value is None or value.type not in ("Add", "AddV2"):
        return None
    for own, other in (value.inputs, reversed(value.inputs)):
        read = own.op
        while read.type == "Identity":
            read = read.inputs[0].op
        if read.type == "ReadVariableOp" and kinds.key(read.inputs[0]) == kinds.key(op.inputs[0]):
            return other
    return None


def _leads_to(tensor: Any, leaves: set[Any]) -> bool:
    seen = {kinds.key(tensor)}
    todo = [tensor]
    while todo:
        tensor = todo.pop()
        if kinds.key(tensor) in leaves:
            return True
        op = tensor.op
        if op.type in _READS or op.type.startswith("TfMpi") or carrier.averaged_names(op):
            continue
        sources = op.inputs
        if op.type == "IdentityN":  # a custom gradient's op also passes the function's inputs
            sources = [op.inputs[tensor.value_index]]
        for source in sources:
            if kinds.key(source) not in seen:
                seen.add(kinds.key(source))
                todo.append(source)
    return False
