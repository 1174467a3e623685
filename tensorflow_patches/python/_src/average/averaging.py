"""The average of many tensors over the ranks as one operation, for gradients that pass no Apply op.

In graphs it is an IdentityN with private attributes, a stock op: a SavedModel that holds one loads
in stock TensorFlow, as the identity it is on one process. In eager code it is an op of our own.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from tensorflow.mpi._src.runtime import c_api, hooks
from tensorflow.mpi._src.variables.naming import NAMES

LABEL = "_tf_mpi_average"
_TABLE_ROWS = "_tf_mpi_table_rows"  # makes it an average of a sparse gradient
# In a compiled function one op averages everything, the sparse gradients first, each as values and
# indices: how many of its rows are this rank's, before the room for others'.
_ROWS = "_tf_mpi_rows"
# Grappler would split off the outputs that nobody reads (the weight), and fold constants.
_KEEP = "_grappler_do_not_remove"

# An op is closed when it holds this much (docs/decisions/006-fusion.md).
_BUCKET_BYTES = 2 << 20
# Travels alone, as soon as it is there.
_LARGE_BYTES = 1 << 20

# The executor gives a closure to its thread pool for each op that follows an asynchronous one, but
# runs those that follow this one, if they are cheap, one after the other.
_FAN_OUT = 8

_local = threading.local()  # weight, depth


def average(
    tensors: Sequence[Any], names: Sequence[str], label: str, weight: Any = None
) -> list[Any]:
    """The averages over all ranks of `weight * tensor`, in as few operations as overlap allows.

    Args:
      tensors: dense tensors or variables of floating or complex dtypes; the same number, dtypes and
        shapes on all ranks.
      names: one per tensor, the same on all ranks: they name a tensor in errors.
      label: of the whole. Name and label together must be unique among what is averaged at the same
        time. In one graph, the second and further average of a label get its number.
      weight: float32 scalar tensor, not negative; None is 1. Its mean over ranks should be 1. With
        0 a rank counts as zeros, whatever its tensors hold.

    Returns:
      Tensors of the shapes and dtypes of `tensors`; these themselves on one rank.

    Raises:
      ValueError: there are not as many names as tensors.
      TypeError: a tensor is sparse; see average_slices.
      When it runs: tf.errors.InvalidArgumentError, DeadlineExceededError, UnavailableError, as
      tensorflow.mpi.allreduce.
    """
    from tensorflow.python.eager import context
    from tensorflow.python.framework import dtypes, indexed_slices, ops

    if len(tensors) != len(names):
        raise ValueError(f"'{label}' averages {len(tensors)} tensors under {len(names)} names")
    for tensor, name in zip(tensors, names, strict=True):
        if isinstance(tensor, indexed_slices.IndexedSlices):
            raise TypeError(f"'{name}' of the average '{label}' is sparse; it must be dense")
    dense = [ops.convert_to_tensor(tensor) for tensor in tensors]
    if not dense or hooks.size == 1:
        return dense
    scale = ops.convert_to_tensor(1.0 if weight is None else weight, dtype=dtypes.float32)
    if context.executing_eagerly():
        return _eager(dense, list(names), label, scale)
    return _in_graph(dense, list(names), label, scale)


def _eager(tensors: list[Any], names: list[str], label: str, weight: Any) -> list[Any]:
    from tensorflow.python.eager import context, execute

    types = tuple(tensor.dtype.as_datatype_enum for tensor in tensors)
    averages: list[Any] = execute.execute(
        b"TfMpiAverage",
        len(tensors),
        inputs=[*tensors, weight],
        attrs=("T", types, "label", label, "names", names),
        ctx=context.context(),
    )
    return averages


def _in_graph(tensors: list[Any], names: list[str], label: str, weight: Any) -> list[Any]:
    from tensorflow.python.framework import ops

    graph = ops.get_default_graph()
    numbered = _numbered(label, _count(graph, label))
    tensors = [_not_constant(tensor) for tensor in tensors]
    averages: list[Any] = [None] * len(tensors)
    # A compiled step has nothing to gain: XLA waits where the first of them stands.
    compiled = is_compiled()
    for bucket in [range(len(tensors))] if compiled else _buckets(tensors):
        results = _marked_identity(
            [tensors[i] for i in bucket], [names[i] for i in bucket], numbered, weight
        )
        if len(results) >= _FAN_OUT and not compiled:
            results = _kept_identity(results, "mpi_averages")
        for i, result in zip(bucket, results, strict=True):
            averages[i] = result
    return averages


def _buckets(tensors: list[Any]) -> list[list[int]]:
    """Indices of tensors that are averaged by one op: from the last, whose gradients come first, so
    that these travel while the others are computed, and while they are still in the cache. A large
    one has an op of its own."""
    buckets: list[list[int]] = []
    size = _BUCKET_BYTES  # of the last that is open
    small: list[int] = []
    for i in reversed(range(len(tensors))):
        if _bytes(tensors[i]) >= _LARGE_BYTES:
            buckets.append([i])
            continue
        if size >= _BUCKET_BYTES:
            small = []
            buckets.append(small)
            size = 0
        small.append(i)
        size += _bytes(tensors[i])
    return buckets


def _bytes(tensor: Any) -> int:
    """0 if unknown."""
    return (tensor.shape.num_elements() or 0) * int(tensor.dtype.size)


def _numbered(label: str, number: int) -> str:
    return label if number == 1 else f"{label} #{number}"


def _marked_identity(
    tensors: list[Any], names: list[str], label: str, weight: Any, **more: Any
) -> list[Any]:
    """The averages. `more`: further attributes, as fields of an AttrValue."""
    encoded = [name.encode() for name in names]
    attributes = {LABEL: {"s": label.encode()}, NAMES: {"list": {"s": encoded}}, **more}
    outputs = _kept_identity([*tensors, weight], "mpi_average", **attributes)
    return outputs[:-1]


def _kept_identity(tensors: list[Any], name: str, **attributes: Any) -> list[Any]:
    """An IdentityN that Grappler leaves as it is. `attributes`: fields of an AttrValue each."""
    from tensorflow.core.framework import attr_value_pb2
    from tensorflow.python.ops import gen_array_ops

    outputs: list[Any] = gen_array_ops.identity_n(tensors, name=name)
    for key, value in {_KEEP: {"b": True}, **attributes}.items():
        outputs[0].op._set_attr(key, attr_value_pb2.AttrValue(**value))
    return list(outputs)


def average_slices(slices: Any, name: str, label: str, weight: Any = None) -> Any:
    """The average over all ranks of `weight * slices`, a sparse gradient, row by row.

    What one process has for the whole batch, with the duplicates of each row summed.

    Args:
      slices: tf.IndexedSlices, values [n, ...] of a floating or complex dtype, indices [n] int32 or
        int64, any of them as often as it likes. n may differ by rank, and be 0. `dense_shape`, if
        it is there and known, must be the same on all ranks.
      name, label, weight: as of `average`; in one graph, the second and further average of a name
        and label get their number.

    Returns:
      tf.IndexedSlices, values [m, ...], indices [m], each of them once, the same on all ranks;
      `slices` itself on one rank. Inside a compiled function, whose shapes are static, rows of 0
      may follow, for the index -1, which compiled scatters leave out; or it is a dense tensor,
      where that moves fewer bytes or the number of rows is not static.

    Raises:
      As `average`.
    """
    from tensorflow.python.eager import context
    from tensorflow.python.framework import dtypes, indexed_slices, ops

    if hooks.size == 1:
        return slices
    if is_compiled():
        return _all_in_compiled([slices], [name], label, weight)[0]
    eagerly = context.executing_eagerly()
    scale = ops.convert_to_tensor(1.0 if weight is None else weight, dtype=dtypes.float32)
    run = _slices_eagerly if eagerly else _slices_in_graph
    values, indices = run(slices, name, label, scale, _table_rows(slices))
    if eagerly:
        values._tf_mpi_distinct = indices
    return indexed_slices.IndexedSlices(values, indices, slices.dense_shape)


def is_distinct(values: Any, indices: Any) -> bool:
    """Whether these are what one `average_slices` returned: then no row is there twice."""
    if hasattr(values, "_numpy_internal"):
        return getattr(values, "_tf_mpi_distinct", None) is indices
    if not hasattr(values, "op") or not hasattr(indices, "op"):
        return False
    if values.op is not indices.op or values.op.type != "IdentityN":
        return False
    attributes = values.op.node_def.attr
    pairs = len(attributes[_ROWS].list.i) if _ROWS in attributes else int(_TABLE_ROWS in attributes)
    place = values.value_index
    return place % 2 == 0 and indices.value_index == place + 1 < 2 * pairs


def _table_rows(slices: Any) -> int:
    """The first dimension of the dense gradient; -1 if unknown here, as it then is on all ranks."""
    from tensorflow.python.framework import tensor_util

    if slices.dense_shape is None:
        return -1
    shape = tensor_util.constant_value(slices.dense_shape)
    return -1 if shape is None else int(shape[0])


def _of_unknown_length(slices: Any) -> list[Any]:
    """Values and indices, whose number neither TensorFlow nor Grappler can infer.

    Other rows come out of an average than go in. Both would take the number of those that go in
    for that of those that come out, and make constants of it, also through PlaceholderWithDefault.
    """
    from tensorflow.python.framework import dtypes

    zero = _hidden_zero(dtypes.int32)  # the slices copy nothing
    return [slices.values[zero:], slices.indices[zero:]]


def _hidden_zero(dtype: Any) -> Any:
    """0, as a tensor of which nobody can know that: to TensorFlow its op has a state."""
    from tensorflow.python.ops import gen_array_ops

    return gen_array_ops.empty([], dtype, init=True)


def _is_constant(tensor: Any) -> bool:
    """Whether Grappler may know the value of `tensor` when it optimizes the graph.

    It then knows that of an IdentityN, too, which for us is another on every rank.
    """
    seen: set[Any] = set()
    todo = [tensor.op]
    while todo:
        op = todo.pop()
        if op.type.startswith("Placeholder") or op.op_def.is_stateful:
            return False
        todo += [source.op for source in op.inputs if source.op not in seen]
        seen.update(source.op for source in op.inputs)
    return True


def _not_constant(tensor: Any) -> Any:
    return tensor + _hidden_zero(tensor.dtype) if _is_constant(tensor) else tensor


def average_all(gradients: Sequence[Any], names: Sequence[str], label: str) -> list[Any]:
    """The averages of tensors and tf.IndexedSlices, with this thread's weight.

    The dense ones in one operation, each sparse one in its own; in a compiled function all in one.
    See `average`, `average_slices`.
    """
    from tensorflow.python.framework import indexed_slices

    if hooks.size > 1 and is_compiled():
        return _all_in_compiled(gradients, names, label, current_weight())
    averages: dict[int, Any] = {}
    dense: list[int] = []
    for number, gradient in enumerate(gradients):
        if isinstance(gradient, indexed_slices.IndexedSlices):
            averages[number] = average_slices(gradient, names[number], label, current_weight())
        else:
            dense.append(number)
    averaged = average(
        [gradients[n] for n in dense], [names[n] for n in dense], label, current_weight()
    )
    averages.update(zip(dense, averaged, strict=True))
    return [averages[number] for number in range(len(gradients))]


def _slices_eagerly(slices: Any, name: str, label: str, weight: Any, table_rows: int) -> list[Any]:
    from tensorflow.python.eager import context, execute

    types = (slices.values.dtype.as_datatype_enum, slices.indices.dtype.as_datatype_enum)
    found: list[Any] = execute.execute(
        b"TfMpiSparseAverage",
        2,
        inputs=[slices.values, slices.indices, weight],
        attrs=(
            *("T", types[0], "Tindices", types[1], "label", label),
            *("names", [name], "table_rows", table_rows),
        ),
        ctx=context.context(),
    )
    return found


def _slices_in_graph(slices: Any, name: str, label: str, weight: Any, table_rows: int) -> list[Any]:
    from tensorflow.python.framework import ops

    number = _count(ops.get_default_graph(), f"{name} ({label})")
    return _marked_identity(
        _of_unknown_length(slices),
        [name],
        _numbered(label, number),
        weight,
        **{_TABLE_ROWS: {"i": table_rows}, "_XlaCompile": {"b": False}},
    )


def _static_rows(slices: Any) -> int | None:
    """This rank's rows, if the sparse gradient of a compiled function is to travel as rows.

    The ranks' numbers may differ a little. With so many rows that a dense tensor moves fewer bytes
    it travels as one; ranks that do not agree on that hear so from the engine.
    """
    from tensorflow.mpi import config

    mode = config.get("TF_MPI_SPARSE")
    shape = slices.values.shape
    if mode == "dense" or not shape.is_fully_defined():
        return None
    rows = int(shape[0])
    table = _table_rows(slices)
    # Per rank a reduction moves every element twice, a gathering every row and its index once.
    size = slices.values.dtype.size
    row_bytes = (shape.num_elements() // max(1, rows)) * size
    gathered = hooks.size * rows * (row_bytes + 8)
    if mode == "auto" and table >= 0 and gathered > 2 * table * (row_bytes + size):
        return None
    return rows


def is_compiled() -> bool:
    """Whether what is traced now is compiled as a whole."""
    from tensorflow.python.eager import context
    from tensorflow.python.framework import ops
    from tensorflow.python.ops import control_flow_util

    if context.executing_eagerly():
        return False
    return bool(control_flow_util.GraphOrParentsInXlaContext(ops.get_default_graph()))


def _all_in_compiled(
    gradients: Sequence[Any], names: Sequence[str], label: str, weight: Any
) -> list[Any]:
    """One call for all: XLA would wait where the first of several stands."""
    from tensorflow.python.framework import dtypes, indexed_slices, ops

    rows = [
        _static_rows(g) if isinstance(g, indexed_slices.IndexedSlices) else None for g in gradients
    ]
    sparse = [number for number, own in enumerate(rows) if own is not None]
    dense = [number for number, own in enumerate(rows) if own is None]
    if not sparse:
        return average([ops.convert_to_tensor(g) for g in gradients], names, label, weight)
    graph = ops.get_default_graph()
    results = _marked_identity(
        [tensor for n in sparse for tensor in _with_room(gradients[n], int(rows[n] or 0))]
        + [_not_constant(ops.convert_to_tensor(gradients[n])) for n in dense],
        [names[number] for number in [*sparse, *dense]],
        _numbered(label, _count(graph, label)),
        ops.convert_to_tensor(1.0 if weight is None else weight, dtype=dtypes.float32),
        **{_ROWS: {"list": {"i": [rows[number] for number in sparse]}}},
    )
    averages: dict[int, Any] = dict(zip(dense, results[2 * len(sparse) :], strict=True))
    for place, number in enumerate(sparse):
        values, indices = results[2 * place : 2 * place + 2]
        shape = gradients[number].dense_shape
        averages[number] = indexed_slices.IndexedSlices(values, indices, shape)
    return [averages[number] for number in range(len(gradients))]


def _with_room(slices: Any, rows: int) -> list[Any]:
    """Shapes are static: what goes in has room for what comes out. See glue/xla/compiled_call.h."""
    from tensorflow.python.ops import array_ops

    # A rank may have more rows than another, as one has a sample more of a batch in parts: so many.
    more = (hooks.size - 1) * rows + hooks.size * max(rows // 8, min(rows, 512), 1)
    # As one process sees it, which may load this: rows of zeros, for an index that is there.
    index = slices.indices[:1] if rows else array_ops.zeros([1], slices.indices.dtype)
    empty = array_ops.zeros([more, *slices.values.shape[1:]], slices.values.dtype)
    room = [
        array_ops.concat([slices.values, empty], axis=0),
        array_ops.concat([slices.indices, array_ops.repeat(index, more)], axis=0),
    ]
    return [_not_constant(tensor) for tensor in room]


def _count(graph: Any, label: str) -> int:
    """How many averages of `label` the function has with this one; its branches and loops count in.

    Not those of the function in which it is nested: whether it is traced together with that
    one may differ by rank.
    """
    from tensorflow.python.ops import control_flow_v2_func_graphs as control_flow

    while isinstance(graph, control_flow.ControlFlowFuncGraph):
        graph = graph.outer_graph
    if not hasattr(graph, "_tf_mpi_averages"):
        graph._tf_mpi_averages = {}
    graph._tf_mpi_averages[label] = graph._tf_mpi_averages.get(label, 0) + 1
    return int(graph._tf_mpi_averages[label])


@contextlib.contextmanager
def weighted(weight: Any) -> Iterator[None]:
    """On this thread, `current_weight()` is `weight` inside: around a Keras train step."""
    before = current_weight()
    _local.weight = weight
    try:
        yield
    finally:
        _local.weight = before


def current_weight() -> Any:
    """The weight of this rank's samples in the step that is being traced or run; None if unset."""
    return getattr(_local, "weight", None)


@contextlib.contextmanager
def already_averaged() -> Iterator[None]:
    """Apply ops that this thread creates in graphs, or runs eagerly, inside get averages already.

    Their kernels do not average again. Call no tf.function inside in eager code: whether its
    kernels run on this thread is TensorFlow's affair.
    """
    from tensorflow.python.eager import context

    with contextlib.ExitStack() as stack:
        if context.executing_eagerly():
            # The kernels must run on this thread.
            stack.enter_context(context.execution_mode(context.SYNC))
        before = c_api.load().tfmpi_set_averaged(1)
        _local.depth = getattr(_local, "depth", 0) + 1
        try:
            yield
        finally:
            _local.depth -= 1
            c_api.load().tfmpi_set_averaged(before)


def is_inside_already_averaged() -> bool:
    """Whether this thread is inside `already_averaged()`."""
    return getattr(_local, "depth", 0) > 0


def averaged_names(op: Any) -> list[str]:
    """The names of what `op`, an IdentityN in a graph, averages; none if it is a stock one."""
    if NAMES not in op.node_def.attr:
        return []
    return [name.decode() for name in op.get_attr(NAMES)]
