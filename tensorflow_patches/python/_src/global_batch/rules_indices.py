"""Rules for ops that read or write by index: slices, gather, scatter, segments."""

from __future__ import annotations

from typing import Any

from tensorflow.mpi._src.global_batch import sizes
from tensorflow.mpi._src.global_batch.kind import (
    FIRST,
    MIXED,
    SUM,
    UNKNOWN,
    Dependence,
    Kind,
    common_layout,
    joined,
)
from tensorflow.mpi._src.global_batch.node import Node
from tensorflow.mpi._src.global_batch.rules_arithmetic import elementwise
from tensorflow.mpi._src.global_batch.rules_layers import layer
from tensorflow.mpi._src.global_batch.rules_layout import moves
from tensorflow.mpi._src.global_batch.sizes import Number


def strided_slice(node: Node) -> Dependence:
    if any(one.has_rows for one in node.deps[1:]):
        return _own_sample(node)
    return MIXED if node.deps[0].is_index is FIRST else _cut(node)


@moves()
def _cut(node: Node) -> Dependence:
    dep, rank = node.deps[0], node.rank(0)
    bounds = [node.numbers(i) for i in (1, 2, 3)]
    if rank is None or (bounds[2] is None and node.inputs[1].shape.rank is None):
        return UNKNOWN
    count = node.inputs[1].shape[0] or 0
    unknown = sizes.array([sizes.symbol("?", "bound")] * count)
    begin, end, strides = (unknown if one is None else one for one in bounds)
    index = sizes.strided(node.op, begin, end, strides)
    indexed = sum(item is not None and item is not Ellipsis for item in index)
    if Ellipsis not in index:
        index.append(Ellipsis)
    before = after = 0  # dimensions of the input and of the output so far
    for item in index:
        if item is Ellipsis:
            if before + rank - indexed > dep.axis:
                return dep.but(axis=after + dep.axis - before)
            before, after = before + rank - indexed, after + rank - indexed
        elif item is None:
            after += 1
        elif before < dep.axis:
            before, after = before + 1, after + isinstance(item, slice)
        else:
            kept = _sliced_samples(node, dep, item) if isinstance(item, slice) else MIXED
            return kept.but(axis=after) if kept.has_rows else kept
    return UNKNOWN


def _sliced_samples(node: Node, dep: Dependence, cut: slice) -> Dependence:
    """The result of a slice, with Numbers as bounds, along the dimension of samples."""
    if any(bound.power == "unknown" for bound in (cut.start, cut.stop, cut.step) if bound):
        return UNKNOWN
    step = cut.step.value
    length = dep.outer * node.size * dep.inner
    end = None if cut.stop == length else cut.stop
    start = None if cut.start == sizes.ZERO else cut.start
    if step == 1 and start is None and end is None:
        return dep.but()
    if dep.is_index or dep.mask or step is None or step < 1:
        return MIXED
    block = node.size * dep.inner
    first = (start or sizes.ZERO) / block
    blocks = ((end or length) - (start or sizes.ZERO)) / block
    if step == 1 and first.value is not None and blocks.value and dep.outer.value:
        inside = 0 <= first.value and first.value + blocks.value <= dep.outer.value
        # Some of the `outer` blocks, each of all samples.
        return dep.but(outer=blocks) if inside else MIXED
    offset = 0 if start is None else start.value
    each = dep.inner / sizes.number(step)
    if each.is_whole and offset is not None and 0 <= offset < step and end is None:
        return dep.but(inner=each)  # some elements of each sample
    return MIXED


def _own_sample(node: Node) -> Dependence:
    """x[i] in a loop over the samples."""
    dep, index = node.deps[0], node.deps[1]
    takes_one = index.is_current_index and int(node.op.get_attr("shrink_axis_mask")) & 1
    plain = dep.has_rows and dep.axis == 0 and dep.outer == dep.inner == sizes.ONE
    if takes_one and plain and not dep.is_index and not dep.mask:
        return dep.but(axis=-1)
    return MIXED


def unsliced(node: Node) -> Dependence:
    """StridedSliceGrad: writes back into zeros."""
    dep, count = node.deps[4], node.inputs[1].shape[0]
    if any(one.base not in (Kind.CONST, Kind.SIZE) for one in node.deps[:4]):
        return MIXED
    if not dep.has_rows or dep.axis < 0:
        return dep.but()
    bounds = [node.numbers(i) for i in (1, 2, 3)]
    if count is None or any(one is None for one in bounds):
        return UNKNOWN
    before = after = 0
    for item in sizes.strided(node.op, *bounds):
        if item is Ellipsis:
            return UNKNOWN
        if after == dep.axis and isinstance(item, slice):
            full = item.start is None and item.stop is None and item.step == sizes.ONE
            return dep.but(axis=before, same=False) if full else MIXED  # adds rows of zeros
        before += item is not None
        after += not isinstance(item, Number)
    return dep.but(axis=before + dep.axis - after, same=False)


@moves()
def slice_(node: Node) -> Dependence:
    dep, begin, size = node.deps[0], node.numbers(1), node.numbers(2)
    if size is not None and size.flat[dep.axis] == dep.outer * node.size * dep.inner:
        return dep.but()  # all samples, so `begin` must be 0
    if begin is None or size is None:
        return UNKNOWN
    start, count = begin.flat[dep.axis], size.flat[dep.axis]
    end = None if count.value == -1 else start + count
    return _sliced_samples(node, dep, slice(start, end, sizes.ONE))


def gather(node: Node) -> Dependence:
    params, indices = node.deps[:2]
    rank, batch_dims = node.rank(0), node.op.get_attr("batch_dims")
    axis = node.axis(2, rank) if node.type == "GatherV2" else 0
    ranks = (rank, node.rank(1))
    if axis is None or None in ranks or rank is None:
        return elementwise(node) if not params.has_rows and not indices.has_rows else UNKNOWN
    if not indices.has_rows:
        if not indices.is_const:
            return elementwise(node)
        if not params.has_rows or params.axis < 0:
            return params.but()
        if axis == params.axis:
            return MIXED  # constant indices select samples
        return params.but(
            axis=params.axis + (0 if params.axis < axis else (ranks[1] or 0) - 1 - batch_dims)
        )
    if indices.is_index is True and not indices.power:
        return _own_rows(params, indices, axis)
    if not indices.is_plain:
        return MIXED
    if not params.has_rows:
        if not params.is_const:
            return MIXED
        if indices.axis < batch_dims:
            return UNKNOWN
        return indices.but(axis=axis + indices.axis - batch_dims, same=False)
    if params.axis < 0 and indices.axis < 0:
        return params.but(same=False)
    same_dim = params.axis == indices.axis < batch_dims
    if same_dim and common_layout(params, indices) and params.is_plain:
        return params.but(same=False)
    return MIXED


def _own_rows(params: Dependence, indices: Dependence, axis: int) -> Dependence:
    """Samples that are gathered by their own indices."""
    fine = params.base is Kind.ROWS and params.axis == axis and not params.is_index
    if not fine or params.mask:
        return MIXED
    if indices.mask and indices.axis < 0:
        return MIXED
    if indices.mask:  # the rows that a mask selects
        return params.but(axis=axis + indices.axis, mask=indices.mask)
    plain = params.outer == params.inner == sizes.ONE
    own = axis + indices.axis if indices.axis >= 0 else -1
    outer, inner = indices.outer, indices.inner
    return params.but(axis=own, outer=outer, inner=inner, any_layout=False) if plain else MIXED


def _start_with_own(node: Node, i: int) -> bool:
    """Whether input `i`, indices of GatherNd or ScatterNd, has vectors that start with the index of
    their own sample."""
    dep, rank = node.deps[i], node.rank(i)
    if not dep.is_index or not rank or dep.axis == rank - 1:
        return False
    return (node.inputs[i].shape[-1] == 1) == (dep.is_index is True)


def gather_nd(node: Node) -> Dependence:
    params, indices = node.deps[:2]
    if _start_with_own(node, 1) and params.has_rows:
        return _own_rows(params, indices, 0)
    if not params.is_const or not indices.has_rows or not indices.is_plain:
        return MIXED
    rank = node.rank(1)
    return (
        UNKNOWN if rank is None else MIXED if indices.axis == rank - 1 else indices.but(same=False)
    )


def scatter(node: Node) -> Dependence:
    """ScatterNd: writes samples to rows by their own indices, or sums them by other indices."""
    indices, updates = node.deps[:2]
    if not indices.has_rows or indices.axis:
        return MIXED
    if node.deps[2].base not in (Kind.CONST, Kind.SIZE):
        return MIXED
    if updates.base not in (Kind.CONST, Kind.ROWS) or updates.is_index or updates.over:
        return MIXED
    if updates.has_rows and (updates.axis or not common_layout(indices, updates)):
        return MIXED
    numbers = node.numbers(2)
    if indices.is_index:
        own = numbers is not None and numbers.flat[0] == node.size and not indices.mask
        own = own and _start_with_own(node, 0)
        return indices.but(is_index=False, power=updates.power) if own else MIXED
    return SUM.but(power=updates.power) if node.deps[2].is_const else MIXED


def scattered_into(node: Node) -> Dependence:
    """TensorScatterAdd and the like, at constant indices of dimensions before that of samples."""
    dep, indices, updates = node.deps
    ranks = [node.rank(i) for i in range(3)]
    depth = node.inputs[1].shape[-1] if ranks[1] else None
    if not indices.is_const or not dep.is_plain or not updates.is_plain:
        return MIXED
    if depth is None or ranks[0] is None or ranks[1] is None or ranks[2] is None:
        return UNKNOWN
    shift = depth - (ranks[1] - 1)  # maps a dimension of updates to one of the tensor
    if updates.has_rows:
        updates = updates.but(axis=updates.axis + shift if updates.axis >= ranks[1] - 1 else -1)
    if any(one.has_rows and one.axis < depth for one in (dep, updates)):
        return MIXED
    if not dep.has_rows:
        return updates.but(same=False) if dep.zero else UNKNOWN
    if not updates.has_rows:
        return dep.but(same=False) if updates.zero else UNKNOWN
    return joined(dep, updates).but()


def segments(node: Node) -> Dependence:
    """UnsortedSegmentSum: sums of rows by class."""
    data, ids = node.deps[:2]
    if not node.deps[2].is_const or not ids.has_rows or ids.axis or not ids.is_plain:
        return MIXED
    if data.base not in (Kind.CONST, Kind.ROWS) or data.is_index or data.over:
        return MIXED
    if data.has_rows and (data.axis or data.mask != ids.mask or not common_layout(data, ids)):
        return MIXED
    return SUM.but(power=data.power)


def counts(node: Node) -> Dependence:
    """Bincount and histograms: over all elements, or in each row."""
    dep = node.deps[0]
    if not dep.has_rows or not dep.is_plain or not all(o.is_const for o in node.deps[1:]):
        return MIXED
    if node.type == "DenseBincount" and node.rank(0) == 2:
        return dep.but() if dep.axis == 0 else MIXED
    binary = node.type == "DenseBincount" and node.op.get_attr("binary_output")
    return MIXED if binary else SUM


def searched(node: Node) -> Dependence:
    """searchsorted: in each row, or in a constant row."""
    ordered, values = node.deps
    if ordered.is_const and values.has_rows and values.is_plain:
        return values.but() if values.axis == 1 else UNKNOWN
    return layer(0, 1)(node)


def one_hot(node: Node) -> Dependence:
    dep, rank = node.deps[0], node.rank(0)
    if not dep.has_rows or not dep.is_plain or not all(o.is_const for o in node.deps[1:]):
        return MIXED
    if dep.axis < 0:
        return dep.but()
    if rank is None:
        return UNKNOWN
    axis = node.op.get_attr("axis")
    return dep.but(axis=dep.axis + (0 <= axis <= dep.axis), same=False)


def where(node: Node) -> Dependence:
    """Where: the indices of true elements."""
    dep = node.deps[0]
    if not dep.has_rows or not dep.is_plain or dep.axis:
        return MIXED if dep.axis >= 0 else UNKNOWN
    is_index = True if node.rank(0) == 1 else FIRST
    return Dependence(Kind.ROWS, mask=_mask_key(node, node.inputs[0]), is_index=is_index)


def _mask_key(node: Node, mask: Any, depth: int = 3) -> Any:
    """A key made from the ops that compute a mask, as scripts may compute a mask several times."""
    while mask.op.type in ("Identity", "Reshape", "Squeeze"):
        mask = mask.op.inputs[0]
    op = mask.op
    if op.type == "Const":
        return op.get_attr("value").SerializeToString()
    if not depth or not op.inputs or op.op_def.is_stateful:
        return (node.analysis.call, node.analysis.key(mask))
    sources = tuple(_mask_key(node, source, depth - 1) for source in op.inputs)
    attributes = tuple((name, str(op.node_def.attr[name])) for name in sorted(op.node_def.attr))
    return (op.type, mask.value_index, attributes, sources)


def select(node: Node) -> Dependence:
    """Select, with a condition for each row or for each element."""
    ranks = [node.rank(i) for i in range(3)]
    if node.type == "Select" and ranks[0] not in (0, None, ranks[1]):
        if not all(one.is_plain and one.has_rows and not one.axis for one in node.deps):
            return UNKNOWN
        both = common_layout(node.deps[0], node.deps[1])
        return MIXED if both is None else both.but(same=False)
    if all(one.is_plain for one in node.deps):
        return elementwise(node)
    if node.deps[1].is_index and node.deps[2].zero and _compares_size_with_1(node):
        return node.deps[1]  # a single sample has index 0
    # With a condition per sample, a scale of both values is a scale of the result.
    condition, *values = node.deps
    if condition.is_const and not any(one.has_rows for one in values):
        return joined(*values)
    scales = {(one.power, one.over) for one in values if not one.zero}
    if not condition.is_plain or len(scales) != 1 or any(one.is_index for one in values):
        return MIXED
    if not all(one.base in (Kind.ROWS, Kind.CONST) for one in values):
        return MIXED
    ((power, over),) = scales
    plain = [one.but(power=0, over=None) for one in node.deps]
    layout = elementwise(node.with_deps(plain))
    return layout.but(power=power, over=over) if layout.has_rows else layout


def _compares_size_with_1(node: Node) -> bool:
    """Whether the condition is that there is more than one sample, as in vectorized loops."""
    op = node.inputs[0].op
    if op.type != "Greater":
        return False
    size, floor = (node.analysis.dependence(source).numbers for source in op.inputs)
    return sizes.to_ints(floor) == [1] and size is not None and size.flat[0] == node.size
