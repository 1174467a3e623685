"""Whether a tensor of a graph is computed from averages, so that it is the same on all ranks.

The search goes from a tensor back through the ops that compute it, and out of functions through
their captures.
"""

from __future__ import annotations

from typing import Any

from tensorflow.mpi._src.average import carrier
from tensorflow.mpi._src.variables import naming

# The outputs of these ops are the same on all ranks once the variables are synchronized.
SAME_ON_ALL_RANKS = {"Const", "ReadVariableOp", "VarHandleOp", "Variable", "VariableV2"}
# The outputs of these ops may differ by rank although the ops are stateless.
_OWN_OF_EACH_RANK = {"Placeholder", "PlaceholderV2", "PlaceholderWithDefault"}


def values_of(gradient: Any) -> Any:
    """The values of a sparse gradient; a dense gradient itself."""
    return getattr(gradient, "values", gradient) if hasattr(gradient, "indices") else gradient


def is_averaged(gradient: Any) -> bool:
    """Whether `gradient` is computed from averages, so that it is the same on all ranks.

    In a graph: every path back from it, through deterministic ops, ends at an average, a constant
    or a variable, and at least one ends at an average. For an eager tensor: whether
    script_gradients.note_average has marked it.

    Args:
      gradient: a tensor, or tf.IndexedSlices.
    """
    gradient = values_of(gradient)
    if hasattr(gradient, "_numpy_internal"):
        return bool(getattr(gradient, "_tf_mpi_averaged", False))
    if not hasattr(gradient, "op") or not _holds_average(gradient.graph):
        return False
    return is_same_on_ranks(gradient) and _leads_to_average(gradient)


def is_same_on_ranks(tensor: Any) -> bool:
    """Whether `tensor`, of a graph, is computed from averages, constants and variables only."""
    # Ops that are known to be the same on all ranks, from earlier calls.
    same: set[Any] = naming.noted(tensor.graph, "_tf_mpi_same_on_all_ranks", set)
    seen: set[Any] = set()
    todo = [tensor]
    while todo:
        tensor = todo.pop()
        if hasattr(tensor, "op") and tensor.op not in same and tensor.op not in seen:
            seen.add(tensor.op)
            made_of = _made_of(tensor)
            if made_of is None:
                return False
            todo.extend(made_of)
    same.update(seen)
    return True


def _made_of(tensor: Any) -> list[Any] | None:
    """The inputs that determine `tensor` on all ranks; None if it may differ by rank."""
    op = tensor.op
    if op.type in SAME_ON_ALL_RANKS or is_average(op):
        return []
    if op.type in _OWN_OF_EACH_RANK:
        outer = captured(tensor)
        return None if outer is None else [outer]
    return None if op.op_def.is_stateful else list(op.inputs)


def _leads_to_average(gradient: Any) -> bool:
    seen: set[Any] = set()
    todo = [gradient]
    while todo:
        tensor = todo.pop()
        if not hasattr(tensor, "op") or tensor.op in seen:  # a captured eager tensor has no op
            continue
        seen.add(tensor.op)
        if is_average(tensor.op):
            return True
        todo.extend(_made_of(tensor) or [])
    return False


def is_average(op: Any) -> bool:
    """Whether `op`, of a graph, is one of our averages."""
    return op.type == "IdentityN" and bool(carrier.averaged_names(op))


def _holds_average(graph: Any) -> bool:
    """Whether the graph contains an average; avoids the search if it does not."""
    while graph is not None:
        if hasattr(graph, "_tf_mpi_averages"):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def captured(placeholder: Any) -> Any:
    """The tensor that a function's placeholder captures; None for an argument."""
    graph = placeholder.graph
    if not hasattr(graph, "captures"):
        return None
    return next((out for out, inside in graph.captures if inside is placeholder), None)
