"""Whether a dataset yields the same elements in the same order on every rank.

Decided from the Python objects of its transformations and the ops of their functions. In case of
doubt the answer is no.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.data import contents, iterations, one_order, transformations

# Ops that TensorFlow marks as stateful, but whose output is the same on every rank.
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

# Those of _HARMLESS whose effect depends on when they run: they use state that may be written, or
# print. Variables and tables from outside are found among a function's captures.
_TIMED = {"MutableHashTable", "MutableHashTableV2", "Print", "PrintV2", "VarHandleOp"}

_DRAWS_RANDOM = re.compile("Random|TruncatedNormal|RngReadAndSkip")


def description(dataset: Any) -> list[Any] | None:
    """A description that is equal only on ranks with the same elements; None if that is unknown.

    Files of the same name are assumed to be the same on all ranks.
    """
    found: list[Any] = [digests(dataset)]
    for source in sources(dataset):
        if not transformations.is_tensorflows(source) or one_order.is_open(source):
            return None
        if hasattr(source, "_seed2"):
            seeds = [transformations.constant(one) for one in (source._seed, source._seed2)]
            if None in seeds or seeds == [0, 0]:  # unknown, or drawn by every rank separately
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
    """Digests of what `dataset` is made of. They differ between ranks if the script draws random
    data without a seed, or gives each rank its own part."""
    return [digest for source in sources(dataset) for digest in contents.of_source(source)]


def is_harmless(wrapped: Any) -> bool:
    """Whether a function of tf.data has the same results on every rank."""
    graph = wrapped.function.graph.as_graph_def()
    return all(_is_harmless(*node) for node in contents.nodes(graph))


def draws_in_order(dataset: Any) -> str | None:
    """The name of the function of a sequential map that draws random numbers; None without one."""
    for source in sources(dataset):
        if transformations.is_map(source) and not hasattr(source, "_num_parallel_calls"):
            wrapped = source._map_func
            graph = wrapped.function.graph.as_graph_def()
            drawn = any(_DRAWS_RANDOM.search(op) for op in contents.node_ops(graph))
            if drawn and not is_harmless(wrapped):
                return getattr(wrapped._func, "__name__", "a function")
    return None


# The beginnings of ops that write to a variable or a table.
_WRITES = ("Assign", "ResourceScatter", "LookupTableImport", "LookupTableInsert",
           "LookupTableRemove")  # fmt: skip


def is_made_by_python(dataset: Any) -> bool:
    """Whether Python code yields or changes its elements."""
    return _has_ops(dataset, lambda op: "PyFunc" in op)


def has_effects(dataset: Any) -> bool:
    """Whether making its elements may have side effects: by Python, or by ops that write."""
    return _has_ops(dataset, lambda op: "PyFunc" in op or op.startswith(_WRITES))


def _has_ops(dataset: Any, matches: Callable[[str], bool]) -> bool:
    """Whether Python yields its elements, or one of its functions has an op that `matches`."""
    for source in sources(dataset):
        if transformations.is_of_generator(source):
            return True
        for wrapped in source._functions():
            if any(map(matches, contents.node_ops(wrapped.function.graph.as_graph_def()))):
                return True
    return False


def why_not_delayed(wrapped: Any) -> str | None:
    """Why a function of tf.data cannot run later, or for fewer elements; None if it can.

    A function that reads a variable, or a table that may be written, would see other values.
    """
    function = wrapped.function
    if not hasattr(function, "captured_inputs"):
        return "is of compat.v1"
    for node, others in contents.nodes(function.graph.as_graph_def()):
        if node.op in _TIMED or "Dataset" in node.op or not _is_harmless(node, others):
            return f"does not depend only on its element ({node.op})"
    if any(map(contents.is_writable_resource, function.captured_inputs)):
        return "reads a variable, or a table that may be written"
    return None


def sources(dataset: Any) -> Iterator[Any]:
    """The dataset and all datasets before it."""
    yield dataset
    for source in dataset._inputs():
        yield from sources(source)


def _is_harmless(node: Any, others: dict[str, Any]) -> bool:
    """Whether an op has the same output on every rank; `others`: its function's ops by name."""
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
    # A dataset made in a function has the first order of its seeds: with 0 and 0, a random one.
    seeds = [node.input[names.index(name)] for name in ("seed", "seed2") if name in names]
    return not seeds or any(_is_seed(others.get(seed.split(":")[0])) for seed in seeds)


def _is_seed(node: Any) -> bool:
    """Whether a seed, the output of `node`, is not 0. A computed seed counts as nonzero: get_seed
    (tensorflow/python/data/util/random_seed.py) has replaced seeds 0 and 0."""
    constant = node is not None and node.op == "Const"
    return not constant or bool(tf.make_ndarray(node.attr["value"].tensor))
