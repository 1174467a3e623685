"""Whether something of a batch mixes its samples, told by numbers, where its ops do not tell.

It is computed of made-up batches, some of whose samples are changed in turn. What each sample gives
for itself adds up: what two changes do together is what one does and the other does. So much of
the graph as it is computed by is copied, once for each batch, and run; nothing of the script's is
changed by that. Random ops give the same numbers in each copy.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple

from tensorflow.mpi._src.average import carrier
from tensorflow.mpi._src.runtime import log

_ROWS = 6  # samples of a made-up batch: the first half is changed, then the second, then both
_ANY_LENGTH = 8  # of dimensions that may have any
_DRAWS = 2  # batches
_LARGE = 1 << 24  # elements: variables with more are taken as they are
_NUMBERED = {"Range", "Cumsum", "Where"}  # what makes numbers of samples
# Ops with a state that may run once more than the script has them run.
_READS = ("Placeholder", "ReadVariableOp", "ResourceGather", "VarHandleOp", "LookupTable", "Random",
          "Multinomial", "TruncatedNormal", "Empty", "PartitionedCall", "StatefulPartitionedCall",
          "If", "While", "Case", "StatelessRandom", "ParameterizedTruncatedNormal")  # fmt: skip


_RANDOM = ("Random", "Multinomial", "TruncatedNormal")


class _About(NamedTuple):
    """numbered: samples have numbers; random: something is drawn for them."""

    numbered: bool
    random: bool


class Found(enum.Enum):
    APART = "each sample for itself"
    SUM = "a sum over samples"
    MIXED = "of several samples at once"
    GATHERED = "the script gathers samples of all ranks itself"
    UNKNOWN = "cannot be told"


def of_graph(
    graph: Any, inputs: Sequence[Any], tensors: Sequence[Any], is_rows: bool, trained: Sequence[Any]
) -> Found:
    """What `tensors` of `graph`, a function's, make of `inputs`, its arguments with samples first.

    Args:
      is_rows: they have samples along their first dimension; else they stand for sums of elements,
        as the targets of a gradient do.
      trained: variables: other values of theirs are tried, as these may hide what depends on what.
    """
    if any(tensor.graph is not graph for tensor in tensors):
        return Found.UNKNOWN  # of a branch or a loop
    operations = _ancestors(tensors)
    if any(op.type.startswith("TfMpi") or carrier.averaged_names(op) for op in operations):
        return Found.GATHERED
    if not all(map(_may_run, operations)):
        return Found.UNKNOWN
    about = _About(
        any(op.type in _NUMBERED for op in operations),
        any(word in op.type for op in operations for word in _RANDOM),
    )
    try:
        found = _numbers(graph, operations, inputs, tensors, trained)
    except Exception as error:  # made-up data are not what the script's ops take
        log.debug(f"a step was not tried: {error}")
        return Found.UNKNOWN
    judge = _of_rows if is_rows else _of_sum
    judged = [judge(one, about) for one in found]
    for answer in (Found.MIXED, Found.UNKNOWN, Found.SUM):
        if answer in judged:
            return answer
    return Found.APART


def _ancestors(tensors: Sequence[Any]) -> list[Any]:
    """What they are computed by; not what merely comes before."""
    found: dict[str, Any] = {}
    todo = [tensor.op for tensor in tensors]
    while todo:
        op = todo.pop()
        if op.name not in found:
            found[op.name] = op
            todo += [source.op for source in op.inputs]
    return list(found.values())


def _may_run(op: Any) -> bool:
    if not op.op_def.is_stateful:
        return True
    if not op.type.startswith(_READS):
        return False
    return all(_function_may_run(op.graph, name) for name in _functions(op.node_def))


def _functions(node: Any) -> list[str]:
    return [value.func.name for value in node.attr.values() if value.HasField("func")]


def _function_may_run(graph: Any, name: str) -> bool:
    from tensorflow.python.framework import op_def_registry

    function = graph._get_function(name)
    definition = None if function is None else function.cached_definition
    if definition is None:
        return False
    for node in definition.node_def:
        op_def = op_def_registry.get(node.op)
        if op_def is None or carrier.LABEL in node.attr:
            return False
        if op_def.is_stateful and not node.op.startswith(_READS):
            return False
        if not all(_function_may_run(graph, inner) for inner in _functions(node)):
            return False
    return True


def _numbers(
    graph: Any, operations: list[Any], inputs: Sequence[Any], tensors: Sequence[Any], trained: Any
) -> list[list[list[Any]]]:
    """By draw, tensor and batch of _batches: values."""
    import tensorflow as tf
    from tensorflow.python.framework import func_graph

    names = [tensor.name for tensor in tensors]
    with tf.init_scope():
        holders = _holders(graph, operations, trained)
        drawn = [_batches(inputs, seed) for seed in range(_DRAWS)]

        def run() -> Any:
            here = tf.compat.v1.get_default_graph()
            assert isinstance(here, func_graph.FuncGraph)
            outside = {name: here.capture(value) for name, value in holders.items()}
            definition = _definition(graph, operations)
            return [
                [
                    tf.graph_util.import_graph_def(
                        definition,
                        {**outside, **{i.name: tf.constant(v) for i, v in zip(inputs, batch)
                                       if i.op in operations}},
                        names,
                        name=f"draw{number}",
                    )
                    for batch in batches
                ]
                for number, batches in enumerate(drawn)
            ]  # fmt: skip

        values = tf.function(run, autograph=False)()
        return [
            [[batch[place].numpy() for batch in batches] for place in range(len(names))]
            for batches in values
        ]


def _definition(graph: Any, operations: list[Any]) -> Any:
    """Of these alone, in no order but that of their inputs."""
    from tensorflow.core.framework import graph_pb2

    everything = graph.as_graph_def()
    wanted = {op.name for op in operations}
    definition = graph_pb2.GraphDef(versions=everything.versions, library=everything.library)
    for node in everything.node:
        if node.name in wanted:
            copy = definition.node.add()
            copy.CopyFrom(node)
            del copy.input[:]
            copy.input.extend(name for name in node.input if not name.startswith("^"))
    return definition


def _holders(graph: Any, operations: list[Any], trained: Sequence[Any]) -> dict[str, Any]:
    """What `graph` has from outside, by the name of what holds its place."""
    import numpy as np
    import tensorflow as tf

    by_handle = {id(variable.handle): variable for variable in trained}
    generator = np.random.default_rng(0)
    found: dict[str, Any] = {}
    kept = []
    wanted = {op.name for op in operations}
    for outside, inside in graph.captures:
        if inside.op.name not in wanted:
            continue
        if not hasattr(outside, "_numpy_internal"):
            raise ValueError(f"{inside.name} is of a function outside")
        variable = by_handle.get(id(outside))
        if variable is not None and variable.dtype.is_floating and _is_small(variable.shape):
            value = variable.numpy().astype(np.float64)
            more = generator.choice([-1.0, 1.0], value.shape) * (0.1 * np.abs(value) + 0.03)
            kept.append(tf.Variable(tf.cast(value + more, variable.dtype)))
            outside = kept[-1].handle
            outside._tf_mpi_owner = kept[-1]  # lives as long
        found[inside.name] = outside
    return found


def _is_small(shape: Any) -> bool:
    return shape.num_elements() is not None and shape.num_elements() <= _LARGE


def _batches(inputs: Sequence[Any], seed: int) -> list[list[Any]]:
    """A batch, the same again, with its first half changed, its second, both; turned; twice."""
    import numpy as np

    generator = np.random.default_rng(seed)
    batch = [_made_up(one, generator) for one in inputs]
    every = np.arange(_ROWS)
    first, second = every.copy(), every.copy()
    first[: _ROWS // 2] = _ROWS - 1
    second[_ROWS // 2 :] = 0
    both = np.concatenate([first[: _ROWS // 2], second[_ROWS // 2 :]])
    orders = [every, every, first, second, both, every[::-1], np.concatenate([every, every])]
    return [[value[order] if value.ndim else value for value in batch] for order in orders]


def _made_up(tensor: Any, generator: Any) -> Any:
    """Small numbers, as any layer takes; 0 and 1 where numbers are whole."""
    if tensor.shape.rank is None:
        raise ValueError(f"{tensor.name} has any number of dimensions")
    shape = [_ROWS, *(size or _ANY_LENGTH for size in tensor.shape[1:])]
    shape = shape if tensor.shape.rank else []
    if tensor.dtype.is_floating or tensor.dtype.is_complex:
        return generator.uniform(0.05, 0.95, shape).astype(tensor.dtype.as_numpy_dtype)
    whole = generator.integers(0, 2, shape)
    return whole.astype(object if tensor.dtype == "string" else tensor.dtype.as_numpy_dtype)


def _of_sum(values: list[list[Any]], about: _About) -> Found:
    import numpy as np

    for one in values:
        plain, again, first, second, both, turned, twice = (
            float(np.sum(value.astype(np.float64))) for value in one
        )
        if not np.isfinite([plain, first, second, both]).all() or plain != again:
            return Found.UNKNOWN
        changes = max(abs(first - plain), abs(second - plain))
        noise = 1e-3 * changes + 1e-5 * abs(plain)
        if abs(plain - first - second + both) > noise:
            return Found.MIXED
        if about.numbered and abs(turned - plain) > noise:
            return Found.MIXED  # it depends on the place of a sample
        if abs(twice - plain) > noise and not (  # the masks of more samples are others
            about.random and abs(twice - plain) < abs(twice - 2 * plain)
        ):
            return Found.SUM
    return Found.APART


def _of_rows(values: list[list[Any]], about: _About) -> Found:
    import numpy as np

    for one in values:
        if any(value.dtype.kind not in "fiubc" for value in one):
            return Found.UNKNOWN
        if any(not value.ndim or value.shape[0] % _ROWS or not value.shape[0] for value in one):
            return Found.MIXED
        shaped = [value.reshape(_ROWS, -1) for value in one[:6]]
        plain, again, first, second, _, turned = (value.astype(np.complex128) for value in shaped)
        if not np.isfinite([plain, first, second]).all() or (plain != again).any():
            return Found.UNKNOWN
        half = _ROWS // 2
        changes = max(np.abs(first[:half] - plain[:half]).max(initial=0), 1e-3)
        noise = 1e-3 * changes + 1e-5 * np.abs(plain).max(initial=0)
        others = np.abs(first[half:] - plain[half:]).max(initial=0)
        if max(others, np.abs(second[:half] - plain[:half]).max(initial=0)) > noise:
            return Found.MIXED
        if about.numbered and np.abs(turned[::-1] - plain).max(initial=0) > noise:
            return Found.MIXED
    return Found.APART
