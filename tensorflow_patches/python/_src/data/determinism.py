"""Whether a dataset yields the same elements in the same order on every rank.

Told from the Python objects of its transformations and from the ops in their functions. In doubt it
does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensorflow.mpi._src.runtime import control_plane

_DATASETS = "tensorflow.python.data."
_LOOKED_AT = 2**16  # elements, at the beginning, in the middle and at the end of an array

# Ops that TensorFlow calls stateful, and that give every rank the same.
_HARMLESS = {
    "Assert", "Case", "If", "LookupTableFind", "LookupTableFindV2", "LookupTableSize",
    "LookupTableSizeV2", "HashTable", "HashTableV2", "MatchingFiles", "MutableHashTable",
    "MutableHashTableV2", "PartitionedCall", "Print", "PrintV2", "ReadFile", "ReadVariableOp",
    "ResourceGather", "ResourceGatherNd", "StatefulPartitionedCall", "StaticRegexReplace",
    "VarHandleOp", "While",
}  # fmt: skip


def description(dataset: Any) -> list[Any] | None:
    """Ranks whose descriptions are equal have the same elements. None: that cannot be told.

    It is assumed that files are the same on all ranks.
    """
    found: list[Any] = [digests(dataset)]
    for source in _sources(dataset):
        if not type(source).__module__.startswith(_DATASETS) or _in_any_order(source):
            return None
        if hasattr(source, "_seed2"):
            seeds = [_constant(source._seed), _constant(source._seed2)]
            if None in seeds or seeds == [0, 0]:  # drawn at random, by every rank for itself
                return None
            found.append(seeds)
        if not all(map(_is_function_of_its_input, source._functions())):
            return None
        found.append(type(source).__name__)
    return found


def digests(dataset: Any) -> list[int]:
    """Of the arrays that `dataset` is made of: unequal, if they differ between ranks.

    Of large arrays some parts are looked at. A script that draws random data without a seed, or
    gives each rank its own part, has others on every rank.
    """
    found = []
    for source in _sources(dataset):
        for tensor in getattr(source, "_tensors", ()):
            if hasattr(tensor, "_numpy_internal") and tensor.dtype.is_numpy_compatible:
                array = tensor._numpy()  # numpy() would copy it
                if array.dtype != object:
                    found += [control_plane.digest(part) for part in _parts(array)]
    return found


def _parts(array: Any) -> list[Any]:
    flat = array.reshape(-1)
    if flat.size <= 3 * _LOOKED_AT:
        return [flat]
    middle = flat.size // 2
    return [flat[:_LOOKED_AT], flat[middle : middle + _LOOKED_AT], flat[-_LOOKED_AT:]]


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


def _is_function_of_its_input(function: Any) -> bool:
    """Whether no op of a StructuredFunctionWrapper, or of what it calls, draws or asks Python."""
    graph = function.function.graph.as_graph_def()
    nodes = [node.op for node in graph.node]
    called = {inner.signature.name for inner in graph.library.function}
    nodes += [node.op for inner in graph.library.function for node in inner.node_def]
    return all(node in called or _is_harmless(node) for node in nodes)


def _is_harmless(op: str) -> bool:
    from tensorflow.python.framework import op_def_registry

    definition = op_def_registry.get(op)
    if definition is None:
        return False
    if "Dataset" in op:
        return not any(word in op for word in ("Shuffle", "Random", "Generator"))
    return op in _HARMLESS or not (definition.is_stateful or "PyFunc" in op)
