"""Rules for ops that create tensors of a shape which may depend on the number of samples."""

from __future__ import annotations

from typing import Any

from tensorflow.mpi._src.global_batch import sizes
from tensorflow.mpi._src.global_batch.kind import CONST, MIXED, UNKNOWN, Dependence, Kind
from tensorflow.mpi._src.global_batch.node import Node, drawn_mark
from tensorflow.mpi._src.global_batch.rules_layout import tile
from tensorflow.mpi._src.global_batch.sizes import Number


def tile_any(node: Node) -> Dependence:
    """Tile; a constant that is repeated for each sample becomes constant rows."""
    dep, times = node.deps[0], node.numbers(1)
    dims = node.dims(0)
    if not dep.is_const or times is None or dims is None:
        return tile(node)
    return _spread(node, [size * often for size, often in zip(dims, times.flat)], dims)


def _spread(node: Node, after: list[Number], before: list[Number]) -> Dependence:
    """A constant of shape `before`, broadcast or repeated to shape `after`."""
    of_samples = [axis for axis, size in enumerate(after) if size.power != 0]
    if not of_samples:
        return CONST
    if len(of_samples) > 1:
        return MIXED
    (axis,) = of_samples
    lead = len(after) - len(before)
    own = before[axis - lead] if axis >= lead else sizes.ONE
    inner = after[axis] / node.size
    if not inner.is_whole or inner.power:
        return UNKNOWN
    return Dependence(Kind.ROWS, axis, inner=inner, same=True, any_layout=own == sizes.ONE)


def broadcast(node: Node) -> Dependence:
    dep, after, before = node.deps[0], node.numbers(1), node.dims(0)
    if before is None or any(one.base not in (Kind.CONST, Kind.SIZE) for one in node.deps[1:]):
        return UNKNOWN
    if dep.has_rows and dep.axis >= 0:
        rank = node.output.shape.rank if after is None else after.size
        if rank is None:
            return UNKNOWN
        axis = dep.axis + rank - len(before)
        if after is not None and any(one.power for p, one in enumerate(after.flat) if p != axis):
            return MIXED
        return dep.but(axis=axis)
    if dep.base not in (Kind.CONST, Kind.SUM):
        return dep.but()
    if after is None:
        return UNKNOWN
    if all(one.power == 0 for one in after.flat):
        return dep.but(zero=dep.zero)
    if dep.base is Kind.SUM:
        return MIXED
    spread = _spread(node, list(after.flat), before)
    return spread.but(power=dep.power, over=dep.over) if spread.has_rows else spread


def drawn(node: Node) -> Dependence:
    """Random numbers. A draw for samples without a mark (node.DRAWN), which is in a loop or in a
    restored function, is added to the analysis's foreign_draws."""
    dep = fill(node)
    if dep.has_rows and drawn_mark(node.op) is None:
        node.analysis.foreign_draws.append(node.op)
    return dep


def fill(node: Node) -> Dependence:
    """Numbers, filled in or drawn. Their shape, input 0, may depend on the number of samples."""
    dep = node.deps[0]
    values = node.deps[1:]
    if node.type != "Fill" and not all(one.is_const for one in values):
        return MIXED
    value = values[0] if node.type == "Fill" else CONST
    if dep.base is Kind.CONST and not dep.power:
        return value.but(zero=value.zero)
    if value.base is not Kind.CONST:
        return MIXED
    numbers = dep.numbers
    if numbers is None:
        return UNKNOWN
    spread = _spread(node, list(numbers.flat), [])
    is_fill = node.type in ("Fill", "Empty")
    if not spread.has_rows:
        return spread
    return spread.but(power=value.power, over=value.over, same=is_fill, zero=value.zero and is_fill)


def string_split(node: Node) -> Dependence:
    """StringSplitV2: any number of words for each sample, in order, and their row indices."""
    dep = node.deps[0]
    if not dep.has_rows or not dep.is_plain or dep.mask or dep.axis:
        return MIXED if dep.has_rows else UNKNOWN
    mask = node.op.name
    outputs = (
        Dependence(Kind.ROWS, mask=mask, is_index=True),
        Dependence(Kind.ROWS, mask=mask),
        UNKNOWN,
    )
    return outputs[node.output.value_index]


def padded_words(node: Node) -> Dependence:
    """RaggedTensorToTensor after `string_split`: rows if their length is constant. Otherwise all
    are as long as the longest of the batch."""
    values = node.deps[1]
    if not (values.has_rows and values.mask and values.is_plain and not values.axis):
        return UNKNOWN
    lengths = node.ints(0)
    if lengths is None or len(lengths) < 2 or min(lengths[1:]) < 0:
        return MIXED
    split = {_source(tensor) for tensor in node.inputs[3:]}
    of_one_split = len(split) == 1 and None not in split
    return Dependence(Kind.ROWS) if of_one_split and node.deps[2].is_const else UNKNOWN


def _source(tensor: Any) -> str | None:
    """The name of the StringSplitV2 from which row lengths or values come; None without one."""
    while tensor.op.type in ("Cast", "Identity", "StridedSlice"):
        tensor = tensor.op.inputs[0]
    return str(tensor.op.name) if tensor.op.type == "StringSplitV2" else None


def range_(node: Node) -> Dependence:
    """Range: the indices of all samples, if it counts from 0 to their number."""
    start, end, step = (node.numbers(i) for i in range(3))
    if end is None or sizes.to_ints(start) != [0] or sizes.to_ints(step) != [1]:
        return MIXED
    return Dependence(Kind.ROWS, is_index=True) if end.flat[0] == node.size else MIXED
