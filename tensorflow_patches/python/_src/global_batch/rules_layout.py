"""Rules for ops that move elements: reshape, transpose, concatenate, split, pad."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from tensorflow.mpi._src.global_batch import sizes
from tensorflow.mpi._src.global_batch.kind import (
    CONST,
    FIRST,
    MIXED,
    SIZE,
    UNKNOWN,
    Dependence,
    Kind,
    added,
    common_layout,
    of_numbers,
)
from tensorflow.mpi._src.global_batch.node import Node
from tensorflow.mpi._src.global_batch.rules_arithmetic import elementwise
from tensorflow.mpi._src.global_batch.sizes import Number

Rule = Callable[[Node], Dependence]


def moves(moved: int = 0) -> Callable[[Rule], Rule]:
    """Decorates a rule for ops that rearrange input `moved`. Called if that input has samples.

    Otherwise the output has that input's dependence if the other inputs are constant; else it is
    UNKNOWN. The others, such as shapes, may depend on the number of samples only.
    """

    def decorate(rule: Rule) -> Rule:
        @functools.wraps(rule)
        def rule_for_any(node: Node) -> Dependence:
            dep = node.deps[moved]
            others = [one for i, one in enumerate(node.deps) if i != moved]
            if any(one.base not in (Kind.CONST, Kind.SIZE) or one.over for one in others):
                return MIXED
            if not dep.has_rows or dep.axis < 0:
                fixed = all(one.is_const for one in others)
                return dep.but(zero=dep.zero) if fixed else UNKNOWN
            return rule(node)

        return rule_for_any

    return decorate


def shape(node: Node) -> Dependence:
    i = node.output.value_index if node.type == "ShapeN" else 0
    dims = node.dims(i)
    if dims is None:
        lost = node.deps[i].base in (Kind.MIXED, Kind.UNKNOWN)
        return UNKNOWN if lost else SIZE if node.deps[i].has_rows else CONST
    size = node.type == "Size"
    return of_numbers(sizes.array([sizes.product(dims)] if size else dims, [] if size else -1))


@moves()
def reshape(node: Node) -> Dependence:
    dep, before = node.deps[0], node.dims(0)
    after = _target(node, before)
    if before is None or after is None:
        return UNKNOWN
    if after[: dep.axis + 1] == before[: dep.axis + 1]:
        return dep.but()
    if dep.mask:
        return MIXED
    # In row-major order, the elements pass through all samples `first` times; a reshape does not
    # change that.
    first = sizes.product(before[: dep.axis])
    # With other dimensions, only the elements along that of samples are alike.
    alike = dep.any_layout and sizes.product(before) == before[dep.axis]
    if not (dep.same and alike):
        first *= dep.outer
    for axis, size in enumerate(after):
        outer = first / sizes.product(after[:axis])
        inner = size / (outer * node.size) if outer.factor else outer
        if outer.is_whole and inner.is_whole and inner.factor:
            return dep.but(axis=axis, outer=outer, inner=inner, any_layout=alike)
    return UNKNOWN if _has_unknown_size(before + after) else MIXED


def _has_unknown_size(numbers: Sequence[Number]) -> bool:
    return any(one.power in ("unknown", None) for one in numbers)


def _target(node: Node, before: list[Number] | None) -> list[Number] | None:
    """The target shape of a Reshape."""
    numbers = node.numbers(1)
    if numbers is not None:
        after = list(numbers.flat)
    elif node.output.shape.rank is None:
        return None
    else:
        after = [sizes.number(-1 if size is None else size) for size in node.output.shape]
    rest = [i for i, size in enumerate(after) if size.value == -1]
    if before is None or len(rest) > 1:
        return None
    if rest:
        after[rest[0]] = sizes.ONE
        after[rest[0]] = sizes.product(before) / sizes.product(after)
    return after


@moves()
def expand(node: Node) -> Dependence:
    dep, rank = node.deps[0], node.rank(0)
    axis = node.axis(1, None if rank is None else rank + 1)
    return UNKNOWN if axis is None else dep.but(axis=dep.axis + (axis <= dep.axis))


@moves()
def squeeze(node: Node) -> Dependence:
    dep, rank = node.deps[0], node.rank(0)
    gone = list(node.op.get_attr("squeeze_dims"))
    if rank is None:
        return UNKNOWN
    if not gone:
        gone = [axis for axis, size in enumerate(node.inputs[0].shape) if size == 1]
    gone = [axis % rank for axis in gone]
    before = sum(axis < dep.axis for axis in gone)
    return UNKNOWN if dep.axis in gone else dep.but(axis=dep.axis - before)


@moves()
def transpose(node: Node) -> Dependence:
    dep, order = node.deps[0], node.ints(1)
    return UNKNOWN if order is None else dep.but(axis=order.index(dep.axis))


def along(i: int) -> Rule:
    """An op along the axis that its input `i` contains."""

    @moves()
    def rule(node: Node) -> Dependence:
        dep, rank = node.deps[0], node.rank(0)
        axes = node.ints(i)
        if axes is None or rank is None:
            return UNKNOWN
        if dep.axis in [axis % rank for axis in axes] or not dep.is_plain:
            return MIXED
        return dep.but()

    return rule


def concat(node: Node) -> Dependence:
    deps, rank = node.deps[:-1], node.output.shape.rank
    axis = sizes.to_ints(node.numbers(len(deps)))
    rows = [one for one in deps if one.has_rows]
    if not rows:
        return elementwise(node) if all(one.base is Kind.SIZE for one in deps) else added(deps)
    if axis is None or rank is None:
        return UNKNOWN
    layout = rows[0]
    if any(one.is_index for one in rows):
        return MIXED if axis[0] % rank == layout.axis else _with_indices(deps, layout.axis)
    same_form = len({(one.axis, one.power, one.over, one.mask, one.base) for one in rows}) == 1
    if len(rows) < len(deps) or not same_form:
        return UNKNOWN if all(one.is_plain for one in deps) else MIXED
    if layout.axis < 0:
        return layout.but(same=False)
    if axis[0] % rank == layout.axis:
        return _concatenated_samples(rows)
    return _stacked_samples(rows, layout.axis)


def _stacked_samples(rows: list[Dependence], axis: int) -> Dependence:
    """Pack or concatenation of samples, of one form except perhaps for outer and inner."""
    layout = common_layout(*rows)
    return MIXED if layout is None else layout.but(axis=axis, same=all(one.same for one in rows))


def _concatenated_samples(rows: list[Dependence]) -> Dependence:
    """A concatenation along the dimension of samples."""
    one = rows[0]
    same = all(each.same for each in rows)
    one = one.but(any_layout=False)
    if all(each.inner == one.inner for each in rows):
        outer = sum((each.outer for each in rows), sizes.ZERO)
        return one.but(outer=outer, same=same)
    # No two numbers describe this layout. `outer` is a symbol that only like concatenations have;
    # `inner` makes the product right.
    outer = sizes.symbol("", "+".join(f"{each.outer}*{each.inner}" for each in rows))
    whole = sum((each.outer * each.inner for each in rows), sizes.ZERO)
    return one.but(outer=outer, inner=whole / outer, same=same)


def _with_indices(deps: list[Dependence], axis: int) -> Dependence:
    """Index vectors for GatherNd and ScatterNd: pack or concatenation of samples' indices, which
    must come first, with constants or rows."""
    first, *others = deps
    for one in others:
        unlike = one.axis != first.axis or not common_layout(first, one)
        if not one.is_plain or (one.has_rows and (unlike or one.mask != first.mask and axis >= 0)):
            return MIXED
    return first.but(axis=axis, is_index=FIRST if others else True) if first.is_index else MIXED


def pack(node: Node) -> Dependence:
    axis, rank = node.op.get_attr("axis"), node.output.shape.rank
    rows = [one for one in node.deps if one.has_rows]
    if not rows:
        return added(node.deps)
    if rank is None:
        return UNKNOWN
    axis %= rank
    layout = rows[0]
    if any(one.is_index for one in rows):
        own = layout.axis
        return _with_indices(node.deps, own + (axis <= own) if own >= 0 else own)
    if layout.axis < 0 and all(one.axis < 0 for one in rows):
        consts = all(one.is_const for one in node.deps if not one.has_rows)
        return _stacked_samples(rows, -1) if consts else MIXED
    if len(rows) < len(node.deps):
        return UNKNOWN if all(one.is_plain for one in node.deps) else MIXED
    if len({(one.axis, one.power, one.over, one.mask, one.base) for one in rows}) > 1:
        return MIXED
    return _stacked_samples(rows, layout.axis + (axis <= layout.axis))


def unpack(node: Node) -> Dependence:
    dep, axis, rank = node.deps[0], node.op.get_attr("axis"), node.rank(0)
    if not dep.has_rows or dep.axis < 0:
        return dep.but()
    if rank is None:
        return UNKNOWN
    axis %= rank
    return MIXED if axis == dep.axis else dep.but(axis=dep.axis - (axis < dep.axis))


def split(value: int, i: int) -> Rule:
    """Split and SplitV of input `value` along the axis that input `i` contains."""

    @moves(value)
    def rule(node: Node) -> Dependence:
        dep = node.deps[value]
        axis = node.axis(i, node.rank(value))
        if axis is None:
            return UNKNOWN
        if axis != dep.axis:
            return dep.but()
        parts = sizes.number(node.op.get_attr("num_split"))
        if node.type == "SplitV" or not (dep.outer / parts).is_whole:
            return MIXED
        return dep.but(outer=dep.outer / parts)

    return rule


@moves()
def tile(node: Node) -> Dependence:
    dep, times = node.deps[0], node.numbers(1)
    if times is None:
        return UNKNOWN
    others = [one for axis, one in enumerate(times.flat) if axis != dep.axis]
    own = times.flat[dep.axis]
    if any(one.power != 0 for one in (*others, own)):
        return MIXED  # the number of repetitions may depend on the number of samples
    return dep.but(outer=dep.outer * own) if not dep.is_index or own == sizes.ONE else MIXED


def padded(node: Node) -> Dependence:
    """Pad, if the dimension of samples is not padded."""
    dep, how = node.deps[0], node.numbers(1)
    if not dep.has_rows or dep.axis < 0:
        zeros = node.type == "Pad" and node.deps[1].is_const
        return dep.but() if zeros and dep.base is Kind.SUM else elementwise(node)
    if any(not one.is_const for one in node.deps[2:]):
        return MIXED
    if node.type == "PadV2" and not dep.is_plain:
        return MIXED
    if how is None:
        return UNKNOWN
    return MIXED if any(one.factor for one in how[dep.axis]) else dep.but(same=False)


def blocks(node: Node) -> Dependence:
    """SpaceToBatchND and its inverse: blocks come before samples in the first dimension."""
    dep, block = node.deps[0], node.numbers(1)
    if not dep.has_rows or dep.axis or not dep.is_plain or dep.is_index:
        return MIXED
    if block is None:
        return UNKNOWN
    count = sizes.product(block.flat)
    outer = dep.outer * count if node.type == "SpaceToBatchND" else dep.outer / count
    return dep.but(outer=outer, same=False) if outer.is_whole else MIXED
