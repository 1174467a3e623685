"""Whether a dataset yields the same elements in the same order on every rank.

Told from the Python objects of its transformations and from the ops in their functions. In doubt it
does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensorflow.mpi._src.data import contents, transformations

_ITERATED = "_tf_mpi_iterated_times"

# Ops that TensorFlow calls stateful, and that give every rank the same.
_HARMLESS = {
    "Assert", "Case", "If", "LookupTableFind", "LookupTableFindV2", "LookupTableSize",
    "LookupTableSizeV2", "HashTable", "HashTableV2", "MatchingFiles", "MutableHashTable",
    "MutableHashTableV2", "PartitionedCall", "Print", "PrintV2", "ReadFile", "ReadVariableOp",
    "ResourceGather", "ResourceGatherNd", "StatefulPartitionedCall", "StaticRegexReplace",
    "VarHandleOp", "While",
}  # fmt: skip

# Of these, what gives another value when something else runs before it, or shows that it has run.
_TIMED = {
    "MutableHashTable", "MutableHashTableV2", "Print", "PrintV2", "ReadVariableOp",
    "ResourceGather", "ResourceGatherNd", "VarHandleOp",
}  # fmt: skip


def description(dataset: Any) -> list[Any] | None:
    """Ranks whose descriptions are equal have the same elements. None: that cannot be told.

    It is assumed that files of the same name are the same on all ranks.
    """
    found: list[Any] = [digests(dataset)]
    for source in _sources(dataset):
        if not transformations.is_tensorflows(source) or _in_any_order(source):
            return None
        if hasattr(source, "_seed2"):
            seeds = [_constant(source._seed), _constant(source._seed2)]
            if None in seeds or seeds == [0, 0]:  # drawn at random, by every rank for itself
                return None
            found.append([*seeds, vars(source).get(_ITERATED, 0)])
        for wrapped in source._functions():
            graph = wrapped.function.graph.as_graph_def()
            if not all(map(_is_harmless, contents.node_ops(graph))):
                return None
            found.append(contents.of_function(wrapped.function, graph))
        found.append(type(source).__name__)
    return found


def digests(dataset: Any) -> list[int]:
    """Of what `dataset` is made of: unequal, if that differs between ranks.

    A script that draws random data without a seed, or gives each rank its own part, has others on
    every rank.
    """
    return [digest for source in _sources(dataset) for digest in contents.of_source(source)]


def note_iteration(dataset: Any) -> None:
    """An iterator of `dataset` is made: its shuffles go on to their next order."""
    for source in _sources(dataset):
        if hasattr(source, "_seed2"):
            vars(source)[_ITERATED] = vars(source).get(_ITERATED, 0) + 1


def is_made_by_python(dataset: Any) -> bool:
    """Whether functions of Python's yield or change its elements, and may note what they do."""
    for source in _sources(dataset):
        if transformations.is_of_generator(source):
            return True
        for wrapped in source._functions():
            ops = contents.node_ops(wrapped.function.graph.as_graph_def())
            if any("PyFunc" in op for op in ops):
                return True
    return False


def why_in_order(wrapped: Any) -> str | None:
    """Why a harmless function of tf.data's cannot run later, or for fewer elements; None: it can.

    The function of a variable, or of a table that may be written, has other values then.
    """
    function = wrapped.function
    if not hasattr(function, "captured_inputs"):
        return "is of compat.v1"
    for op in contents.node_ops(function.graph.as_graph_def()):
        if op in _TIMED or not _is_harmless(op) or "Dataset" in op:
            return f"is no function of its element alone ({op})"
    if any(map(contents.is_written_table, function.captured_inputs)):
        return "reads a table that may be written"
    return None


def _sources(dataset: Any) -> Iterator[Any]:
    yield dataset
    for source in dataset._inputs():
        yield from _sources(source)


def _in_any_order(dataset: Any) -> bool:
    return (
        dataset.options().deterministic is False
        or getattr(dataset, "_deterministic", None) == "false"
    )


def _constant(tensor: Any) -> int | None:
    from tensorflow.python.framework import tensor_util

    value = tensor_util.constant_value(tensor)
    return None if value is None else int(value)


def _is_harmless(op: str) -> bool:
    from tensorflow.python.framework import op_def_registry

    definition = op_def_registry.get(op)
    if definition is None:
        return False
    if "Dataset" in op:
        return not any(word in op for word in ("Shuffle", "Random", "Generator"))
    return op in _HARMLESS or not (definition.is_stateful or "PyFunc" in op)
