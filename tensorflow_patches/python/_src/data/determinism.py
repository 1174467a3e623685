"""Whether a dataset yields the same elements in the same order on every rank.

Told from the Python objects of its transformations and from the ops in their functions. In doubt it
does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tensorflow.mpi._src.data import contents, iterations, one_order, transformations

# Ops that TensorFlow calls stateful, and that give every rank the same.
_HARMLESS = {
    "Assert", "Case", "CheckNumerics", "CheckNumericsV2", "DummyIterationCounter",
    "DummyMemoryCache", "DummySeedGenerator", "HashTable", "HashTableV2", "If", "LookupTableFind",
    "LookupTableFindV2", "LookupTableSize", "LookupTableSizeV2", "MatchingFiles",
    "MutableHashTable", "MutableHashTableV2", "PartitionedCall", "Print", "PrintV2", "ReadFile",
    "ReadVariableOp", "ResourceGather", "ResourceGatherNd", "StatefulPartitionedCall",
    "StatelessRandomGetAlg", "StaticRegexReplace", "TensorArrayCloseV3", "TensorArrayConcatV3",
    "TensorArrayGatherV3", "TensorArrayReadV3", "TensorArrayScatterV3", "TensorArraySizeV3",
    "TensorArraySplitV3", "TensorArrayV3", "TensorArrayWriteV3", "VarHandleOp", "VariableShape",
    "While",
}  # fmt: skip

# Of these, what makes or finds what may be written, or shows that it has run. What a function reads
# of variables and tables from outside is seen by what it has captured.
_TIMED = {"MutableHashTable", "MutableHashTableV2", "Print", "PrintV2", "VarHandleOp"}

_DRAWS = re.compile("Random|TruncatedNormal|RngReadAndSkip")


def description(dataset: Any) -> list[Any] | None:
    """Ranks whose descriptions are equal have the same elements. None: that cannot be told.

    It is assumed that files of the same name are the same on all ranks.
    """
    found: list[Any] = [digests(dataset)]
    for source in sources(dataset):
        if not transformations.is_tensorflows(source) or one_order.is_open(source):
            return None
        if hasattr(source, "_seed2"):
            seeds = [_constant(source._seed), _constant(source._seed2)]
            if None in seeds or seeds == [0, 0]:  # drawn at random, by every rank for itself
                return None
            found.append([*seeds, iterations.times_drawn(source)])
        for wrapped in source._functions():
            if not is_harmless(wrapped):
                return None
            graph = wrapped.function.graph.as_graph_def()
            found.append(contents.of_function(wrapped.function, graph))
        found.append(type(source).__name__)
    return found


def digests(dataset: Any) -> list[int]:
    """Of what `dataset` is made of: unequal, if that differs between ranks.

    A script that draws random data without a seed, or gives each rank its own part, has others on
    every rank.
    """
    return [digest for source in sources(dataset) for digest in contents.of_source(source)]


def is_harmless(wrapped: Any) -> bool:
    """Whether a function of tf.data's gives every rank the same."""
    graph = wrapped.function.graph.as_graph_def()
    return all(_is_harmless(*node) for node in contents.nodes(graph))


def draws_in_order(dataset: Any) -> str | None:
    """The name of a map that draws for one sample after another; None if there is none."""
    for source in sources(dataset):
        if transformations.is_map(source) and not hasattr(source, "_num_parallel_calls"):
            wrapped = source._map_func
            graph = wrapped.function.graph.as_graph_def()
            drawn = any(_DRAWS.search(op) for op in contents.node_ops(graph))
            if drawn and not is_harmless(wrapped):
                return getattr(wrapped._func, "__name__", "a function")
    return None


def is_made_by_python(dataset: Any) -> bool:
    """Whether functions of Python's yield or change its elements, and may note what they do."""
    for source in sources(dataset):
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
    for node, others in contents.nodes(function.graph.as_graph_def()):
        if node.op in _TIMED or "Dataset" in node.op or not _is_harmless(node, others):
            return f"is no function of its element alone ({node.op})"
    if any(map(contents.is_writable_resource, function.captured_inputs)):
        return "reads a variable, or a table that may be written"
    return None


def sources(dataset: Any) -> Iterator[Any]:
    """It, and all before it."""
    yield dataset
    for source in dataset._inputs():
        yield from sources(source)


def _constant(tensor: Any) -> int | None:
    from tensorflow.python.framework import tensor_util

    value = tensor_util.constant_value(tensor)
    return None if value is None else int(value)


def _is_harmless(node: Any, others: dict[str, Any]) -> bool:
    """Whether an op in a function, among `others` by name, gives every rank the same."""
    from tensorflow.python.framework import op_def_registry

    definition = op_def_registry.get(node.op)
    if definition is None:
        return False
    if "Dataset" not in node.op:
        return node.op in _HARMLESS or not (definition.is_stateful or "PyFunc" in node.op)
    attributes = {name: value.s.decode() or value.b for name, value in node.attr.items()}
    if "Generator" in node.op or one_order.opened(attributes):
        return False
    names = [argument.name for argument in definition.input_arg]
    if "seed_generator" in names and "seed" not in names:
        return False
    # A dataset that is made in a function begins with its seeds' first order. 0 and 0: with any.
    seeds = [node.input[names.index(name)] for name in ("seed", "seed2") if name in names]
    return not seeds or any(_is_seed(others.get(seed.split(":")[0])) for seed in seeds)


def _is_seed(node: Any) -> bool:
    from tensorflow.python.framework import tensor_util

    constant = node is not None and node.op == "Const"
    return not constant or bool(tensor_util.MakeNdarray(node.attr["value"].tensor))
