"""How ops that move numbers about, or multiply matrices, make the kinds of tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tensorflow.mpi._src.global_batch import sizes
from tensorflow.mpi._src.global_batch.kind import (
    CONST,
    MIXED,
    SIZE,
    SUM,
    UNKNOWN,
    Kind,
    Told,
    added,
    joined,
    merged,
    of_numbers,
)
from tensorflow.mpi._src.global_batch.node import Node
from tensorflow.mpi._src.global_batch.rules_numbers import together
from tensorflow.mpi._src.global_batch.sizes import Number

Rule = Callable[[Node], Told]


def moves(first: int = 0) -> Callable[[Rule], Rule]:
    """For a rule of what becomes of the samples in input number `first`, which others only steer.

    What has no samples is what it was.
    """

    def decorate(rule: Rule) -> Rule:
        @functools.wraps(rule)
        def whole(node: Node) -> Told:
            told = node.told[first]
            others = [one for place, one in enumerate(node.told) if place != first]
            if any(one.base not in (Kind.CONST, Kind.SIZE) or one.over for one in others):
                return MIXED
            if not told.has_rows or told.axis < 0:
                return told.but(zero=told.zero)
            return rule(node)

        return whole

    return decorate


def shape(node: Node) -> Told:
    place = node.output.value_index if node.type == "ShapeN" else 0
    dims = node.dims(place)
    if dims is None:
        lost = node.told[place].base in (Kind.MIXED, Kind.UNKNOWN)
        return UNKNOWN if lost else SIZE if node.told[place].has_rows else CONST
    size = node.type == "Size"
    return of_numbers(sizes.array([sizes.product(dims)] if size else dims, [] if size else -1))


@moves()
def reshape(node: Node) -> Told:
    told, before = node.told[0], node.dims(0)
    after = _target(node, before)
    if before is None or after is None:
        return UNKNOWN
    if told.some:
        return told.but() if after[:1] == before[:1] and told.axis == 0 else MIXED
    first = sizes.product(before[: told.axis]) * told.outer  # numbers in front of a sample's
    if told.same and told.loose:
        inner = sizes.product(before) / sizes.product(before[: told.axis])
        first, told = sizes.product(before[: told.axis]), told.but(inner=inner / node.size)
    for axis, size in enumerate(after):
        outer = first / sizes.product(after[:axis])
        inner = size / (outer * node.size) if outer.factor else outer
        if outer.is_whole and inner.is_whole and inner.factor:
            return told.but(axis=axis, outer=outer, inner=inner)
    return UNKNOWN if _is_lost(before + after) else MIXED


def _is_lost(numbers: Sequence[Number]) -> bool:
    return any(one.power in ("unknown", None) for one in numbers)


def _target(node: Node, before: list[Number] | None) -> list[Number] | None:
    """The dimensions that a Reshape makes."""
    numbers = node.numbers(1)
    if numbers is not None:
        after = list(numbers.flat)
    elif node.output.shape.rank is None:
        return None
    else:
        after = [sizes.number(-1 if size is None else size) for size in node.output.shape]
    rest = [place for place, size in enumerate(after) if size.value == -1]
    if before is None or len(rest) > 1:
        return None
    if rest:
        after[rest[0]] = sizes.ONE
        after[rest[0]] = sizes.product(before) / sizes.product(after)
    return after


@moves()
def expand(node: Node) -> Told:
    told, rank = node.told[0], node.rank(0)
    axis = node.axis(1, None if rank is None else rank + 1)
    return UNKNOWN if axis is None else told.but(axis=told.axis + (axis <= told.axis))


@moves()
def squeeze(node: Node) -> Told:
    told, rank = node.told[0], node.rank(0)
    gone = list(node.op.get_attr("squeeze_dims"))
    if rank is None:
        return UNKNOWN
    if not gone:
        gone = [axis for axis, size in enumerate(node.inputs[0].shape) if size == 1]
    gone = [axis % rank for axis in gone]
    return UNKNOWN if told.axis in gone else told.but(axis=told.axis - _below(gone, told.axis))


def _below(axes: Sequence[int], axis: int) -> int:
    return sum(one < axis for one in axes)


@moves()
def transpose(node: Node) -> Told:
    told, order = node.told[0], node.ints(1)
    return UNKNOWN if order is None else told.but(axis=order.index(told.axis))


def contracted(node: Node, terms: Sequence[str], result: str) -> Told:
    """A sum of products of inputs with dimensions named `terms`, over those not in `result`."""
    told = node.told
    if not all(one.base in (Kind.CONST, Kind.ROWS, Kind.SUM) for one in told):
        return MIXED
    if any(one.place or one.some for one in told) or sum(one.over is not None for one in told) > 1:
        return MIXED
    power = sum(one.power or 0 for one in told)
    over = next((one.over for one in told if one.over), None)
    sums = [one for one in told if one.base is Kind.SUM]
    rows = [(one, term) for one, term in zip(told, terms) if one.has_rows]
    if not rows:
        if len(sums) > 1:
            return MIXED
        return (sums[0] if sums else CONST).but(power=power, over=over)
    if all(one.axis < 0 for one, _ in rows) and not sums:
        return rows[0][0].but(power=power, over=over, same=False)
    names = {term[one.axis] if one.axis >= 0 else "of one" for one, term in rows}
    if sums or len(names) > 1:
        return MIXED  # each sample with every other
    lie = rows[0][0]
    for one, _ in rows[1:]:
        both = merged(lie, one)
        if both is None:
            return MIXED
        lie = both
    (name,) = names
    for place, (one, term) in enumerate(zip(told, terms)):
        if not one.has_rows and name in term:
            size = node.inputs[place].shape[term.index(name)]
            if size != 1 and not (node.rows and size):
                return UNKNOWN
    if name in result:
        return lie.but(axis=result.index(name), power=power, over=over, same=False)
    same = all(one.same for one, _ in rows)
    how = CONST.but(power=power + 1) if same else SUM.but(power=power)
    return how.but(over=over)


_LABELS = "abcdefghijklmnopqrstuvw"


def matmul(node: Node) -> Told:
    names = ("transpose_a", "transpose_b") if node.type == "MatMul" else ("adj_x", "adj_y")
    ranks = [tensor.shape.rank for tensor in node.inputs]
    if None in ranks:
        return UNKNOWN
    left, right = ("yx" if node.op.get_attr(name) else "xy" for name in names)
    right = right.translate(str.maketrans("xy", "yz"))
    # Of batches of matrices the dimensions in front are broadcast, from their ends.
    front = _LABELS[: max(ranks) - 2]
    lead = [front[len(front) - (rank - 2) :] for rank in ranks]
    return contracted(node, [lead[0] + left, lead[1] + right], front + "xz")


def einsum(node: Node) -> Told:
    equation = node.op.get_attr("equation").decode().replace(" ", "")
    inputs, _, result = equation.partition("->")
    terms = inputs.split(",")
    ranks = [tensor.shape.rank for tensor in node.inputs]
    if None in ranks:
        return UNKNOWN
    # An ellipsis stands for dimensions that are broadcast, from their ends.
    free = [chr(ord("A") + place) for place in range(26) if chr(ord("A") + place) not in equation]
    most = max(rank - len(term.replace("...", "")) for rank, term in zip(ranks, terms))
    dots = "".join(free[:most])
    for place, (rank, term) in enumerate(zip(ranks, terms)):
        count = rank - len(term.replace("...", ""))
        terms[place] = term.replace("...", dots[len(dots) - count :] if count else "")
    if any(len(set(term)) < len(term) for term in terms):
        return UNKNOWN  # a diagonal
    return contracted(node, terms, result.replace("...", dots))


def convolution(kernel: int, samples: int) -> Rule:
    """Linear in inputs number `samples` and `kernel`; samples are first in all of them but the
    kernel, which is summed into where it is no input."""

    def rule(node: Node) -> Told:
        others = [p for p in range(len(node.told)) if p not in (kernel, samples)]
        if not all(node.told[p].base in (Kind.CONST, Kind.SIZE) for p in others):
            return MIXED
        terms = ["N" if p == samples else "k" for p in range(len(node.told))]
        if node.told[samples].has_rows and node.told[samples].axis:
            return UNKNOWN
        return _of_some(node, [samples, kernel], [terms[samples], terms[kernel]], "N")

    return rule


def kernel_gradient(node: Node) -> Told:
    """Of a convolution's kernel: a sum over samples of input number 0 and of the gradient."""
    if any(node.told[place].has_rows and node.told[place].axis for place in (0, 2)):
        return UNKNOWN
    return _of_some(node, [0, 2], ["N", "N"], "k")


def _of_some(node: Node, places: list[int], terms: list[str], result: str) -> Told:
    some = Node(node.analysis, node.output, [node.told[place].but() for place in places], node.rows)
    some.inputs = [node.inputs[place] for place in places]
    return contracted(some, terms, result)


def layer(*followed: int) -> Rule:
    """Of inputs with samples first (those; else the first), by functions of each sample.

    The others are constant.
    """

    def rule(node: Node) -> Told:
        places = [place for place in followed or (0,) if place < len(node.told)]
        rest = [one for place, one in enumerate(node.told) if place not in places]
        chosen = [node.told[place] for place in places]
        if not all(one.base in (Kind.CONST, Kind.SIZE) for one in rest):
            return MIXED
        rows = [one for one in chosen if one.has_rows]
        if not rows or not all(one.is_plain for one in chosen):
            return MIXED
        if any(one.axis for one in rows) or len(rows) < len(chosen):
            return UNKNOWN
        lie: Told | None = rows[0]
        for one in rows[1:]:
            lie = lie and merged(lie, one)
        return MIXED if lie is None else lie.but(same=False)

    return rule


def inner(core: int, *more: int) -> Rule:
    """Of ops on the last `core` dimensions of each input (or so many of each), for all others."""

    def rule(node: Node) -> Told:
        if not all(one.is_plain for one in node.told):
            return MIXED
        lie: Told | None = None
        front = 0
        for place, told in enumerate(node.told):
            if not told.has_rows:
                continue
            rank, size = node.rank(place), (core, *more)[min(place, len(more))]
            if rank is None or node.output.shape.rank is None:
                return UNKNOWN
            if told.axis < 0:
                return UNKNOWN
            if told.axis >= rank - size or (lie is not None and told.axis - (rank - size) != front):
                return MIXED
            front = told.axis - (rank - size)
            lie = told if lie is None else merged(lie, told)
            if lie is None:
                return MIXED
        return UNKNOWN if lie is None else lie.but(same=False)

    return rule


def along(place: int) -> Rule:
    """Of an op along the axis that is its input number `place`."""

    @moves()
    def rule(node: Node) -> Told:
        told, rank = node.told[0], node.rank(0)
        axes = node.ints(place)
        if axes is None or rank is None:
            return UNKNOWN
        if told.axis in [axis % rank for axis in axes] or not told.is_plain:
            return MIXED
        return told.but()

    return rule


def last(node: Node) -> Told:
    """Softmax, top k and the like: between the numbers of a row, if it has any."""
    told, rank = node.told[0], node.rank(0)
    if not told.has_rows or not told.is_plain or not all(one.is_const for one in node.told[1:]):
        return MIXED
    return UNKNOWN if rank is None else MIXED if told.axis == rank - 1 else told.but()


def argument(node: Node) -> Told:
    """ArgMax and ArgMin."""
    told, rank = node.told[0], node.rank(0)
    axis = node.axis(1, rank)
    if not told.has_rows or not told.is_plain:
        return MIXED
    if axis is None:
        return UNKNOWN
    return MIXED if axis == told.axis else told.but(axis=told.axis - (axis < told.axis))


def concat(node: Node) -> Told:
    told, rank = node.told[:-1], node.output.shape.rank
    axis = sizes.whole(node.numbers(len(told)))
    rows = [one for one in told if one.has_rows]
    if not rows:
        return together(node) if all(one.base is Kind.SIZE for one in told) else added(told)
    if axis is None or rank is None:
        return UNKNOWN
    alike = len({(one.axis, one.power, one.over, one.some, one.base) for one in rows}) == 1
    if len(rows) < len(told) or not alike:
        return _with_places(node, axis[0] % rank)
    lie = rows[0]
    if lie.axis < 0:
        return lie.but(same=False)
    if axis[0] % rank == lie.axis:
        return _one_after_another(rows)
    return _pressed(rows, lie.axis)


def _pressed(rows: list[Told], axis: int) -> Told:
    """Side by side, where samples lie alike."""
    lie: Told | None = rows[0]
    for one in rows[1:]:
        lie = lie and merged(lie, one)
    if lie is None:
        return MIXED
    places = {one.place for one in rows}
    if places == {True, False} and not rows[0].place:
        return MIXED  # its number is to come first
    return lie.but(axis=axis, same=all(one.same for one in rows), place=rows[0].place)


def _one_after_another(rows: list[Told]) -> Told:
    """Along the dimension of the samples: each as often."""
    if any(one.place for one in rows):
        return MIXED
    one = rows[0]
    same = all(each.same for each in rows)
    if all(each.inner == one.inner for each in rows):
        outer = functools.reduce(lambda a, b: a + b, [each.outer for each in rows])
        return one.but(outer=outer, same=same)
    name = "+".join(f"{each.outer}*{each.inner}" for each in rows)
    return one.but(outer=sizes.symbol("", name), inner=sizes.ONE, same=same)


def _with_places(node: Node, axis: int) -> Told:
    """Numbers of samples, and constants or rows beside them: indices."""
    rows = [one for one in node.told if one.has_rows]
    first = node.told[0]
    fine = first.place and all(one.place or one.is_plain for one in rows)
    if fine and axis != first.axis and len({one.axis for one in rows}) == 1:
        return first.but()
    return UNKNOWN if all(one.is_plain for one in node.told) else MIXED


def pack(node: Node) -> Told:
    axis, rank = node.op.get_attr("axis"), node.output.shape.rank
    rows = [one for one in node.told if one.has_rows]
    if not rows:
        return added(node.told)
    if rank is None:
        return UNKNOWN
    axis %= rank
    lie = rows[0]
    if lie.axis < 0 and all(one.axis < 0 for one in rows):
        consts = all(one.is_const for one in node.told if not one.has_rows)
        return _pressed(rows, -1) if consts else MIXED
    if len(rows) < len(node.told):
        return _with_places(node, axis + (axis <= lie.axis))
    if len({(one.axis, one.power, one.over, one.some, one.base) for one in rows}) > 1:
        return MIXED
    return _pressed(rows, lie.axis + (axis <= lie.axis))


def unpack(node: Node) -> Told:
    told, axis, rank = node.told[0], node.op.get_attr("axis"), node.rank(0)
    if not told.has_rows or told.axis < 0:
        return told.but()
    if rank is None:
        return UNKNOWN
    axis %= rank
    return MIXED if axis == told.axis else told.but(axis=told.axis - (axis < told.axis))


def split(value: int, place: int) -> Rule:
    """Split and SplitV. place: of the axis."""

    @moves(value)
    def rule(node: Node) -> Told:
        told = node.told[value]
        axis = node.axis(place, node.rank(value))
        if axis is None:
            return UNKNOWN
        if axis != told.axis:
            return told.but()
        parts = sizes.number(node.op.get_attr("num_split"))
        if value == 0 or not (told.outer / parts).is_whole:
            return MIXED
        return told.but(outer=told.outer / parts)

    return rule


def strided_slice(node: Node) -> Told:
    told, rank = node.told[0], node.rank(0)
    if any(one.has_rows for one in node.told[1:]):
        return _own_sample(node)
    if any(one.base not in (Kind.CONST, Kind.SIZE) for one in node.told[1:]):
        return MIXED
    if not told.has_rows or told.axis < 0:
        return told.but(zero=told.zero)
    bounds = [node.numbers(place) for place in (1, 2, 3)]
    if rank is None or (bounds[2] is None and node.inputs[1].shape.rank is None):
        return UNKNOWN
    count = node.inputs[1].shape[0] or 0
    unknown = sizes.array([sizes.symbol("?", "bound")] * count)
    begin, end, strides = (unknown if one is None else one for one in bounds)
    index = sizes.strided(node.op, begin, end, strides)
    taken = sum(one is not None and one is not Ellipsis for one in index)
    if Ellipsis not in index:
        index.append(Ellipsis)
    before = after = 0  # dimensions
    for one in index:
        if one is Ellipsis:
            if before + rank - taken > told.axis:
                return told.but(axis=after + told.axis - before)
            before, after = before + rank - taken, after + rank - taken
        elif one is None:
            after += 1
        elif before < told.axis:
            before, after = before + 1, after + isinstance(one, slice)
        else:
            kept = _kept(node, told, one) if isinstance(one, slice) else MIXED
            return kept.but(axis=after) if kept.has_rows else kept
    return UNKNOWN


def _kept(node: Node, told: Told, one: slice) -> Told:
    """Of a slice along the dimension of the samples."""
    if any(bound.power == "unknown" for bound in (one.start, one.stop, one.step) if bound):
        return UNKNOWN
    step = one.step.value
    length = told.outer * node.size * told.inner
    end = None if one.stop == length else one.stop
    start = None if one.start == sizes.ZERO else one.start
    if step == 1 and start is None and end is None:
        return told.but()
    if told.place or told.some or step is None or step < 1:
        return MIXED
    block = node.size * told.inner
    first = (start or sizes.ZERO) / block
    blocks = ((end or length) - (start or sizes.ZERO)) / block
    if step == 1 and first.value is not None and blocks.value and told.outer.value:
        inside = 0 <= first.value and first.value + blocks.value <= told.outer.value
        return told.but(outer=blocks) if inside else MIXED
    offset = 0 if start is None else start.value
    each = told.inner / sizes.number(step)
    if each.is_whole and offset is not None and 0 <= offset < step and end is None:
        return told.but(inner=each)  # some numbers of each sample
    return MIXED


def _own_sample(node: Node) -> Told:
    """x[i] in a loop over the samples."""
    told, at = node.told[0], node.told[1]
    one = at.place and not at.some and at.axis < 0 and int(node.op.get_attr("shrink_axis_mask")) & 1
    plain = told.has_rows and told.axis == 0 and told.outer == told.inner == sizes.ONE
    if one and plain and not told.place and not told.some:
        return told.but(axis=-1)
    return MIXED


def unsliced(node: Node) -> Told:
    """StridedSliceGrad: back to where it was taken from, with zeros around it."""
    told, count = node.told[4], node.inputs[1].shape[0]
    if any(one.base not in (Kind.CONST, Kind.SIZE) for one in node.told[:4]):
        return MIXED
    if not told.has_rows or told.axis < 0:
        return told.but()
    bounds = [node.numbers(place) for place in (1, 2, 3)]
    if count is None or None in [one if one is None else 0 for one in bounds]:
        return UNKNOWN
    before = after = 0
    for one in sizes.strided(node.op, *bounds):
        if one is Ellipsis:
            return UNKNOWN
        if after == told.axis and isinstance(one, slice):
            full = one.start is None and one.stop is None and one.step == sizes.ONE
            return told.but(axis=before, same=False) if full else MIXED
        before += one is not None
        after += not isinstance(one, Number)
    return told.but(axis=before + told.axis - after, same=False)


def slice_(node: Node) -> Told:
    told, begin, size = node.told[0], node.numbers(1), node.numbers(2)
    if any(one.base not in (Kind.CONST, Kind.SIZE) for one in node.told[1:]):
        return MIXED
    if not told.has_rows or told.axis < 0:
        return told.but(zero=told.zero)
    if size is not None and size.flat[told.axis] == told.outer * node.size * told.inner:
        return told.but()  # all of them, whatever it begins at
    if begin is None or size is None:
        return UNKNOWN
    start, count = begin.flat[told.axis], size.flat[told.axis]
    end = None if count.value == -1 else start + count
    return _kept(node, told, slice(start, end, sizes.ONE))


def gather(node: Node) -> Told:
    params, indices = node.told[:2]
    rank, batch = node.rank(0), node.op.get_attr("batch_dims")
    axis = node.axis(2, rank) if node.type == "GatherV2" else 0
    ranks = (rank, node.rank(1))
    if axis is None or None in ranks or rank is None:
        return together(node) if not params.has_rows and not indices.has_rows else UNKNOWN
    if not indices.has_rows:
        if not indices.is_const:
            return MIXED if params.has_rows or not params.is_const else indices.but()
        if not params.has_rows or params.axis < 0:
            return params.but()
        if axis == params.axis:
            return MIXED  # constants choose samples
        return params.but(
            axis=params.axis + (0 if params.axis < axis else (ranks[1] or 0) - 1 - batch)
        )
    if indices.place and not indices.power:
        return _own_rows(params, indices, axis)
    if not indices.is_plain:
        return MIXED
    if not params.has_rows:
        if not params.is_const:
            return MIXED
        place = indices.axis if indices.axis < batch else axis + indices.axis - batch
        return UNKNOWN if indices.axis < batch else indices.but(axis=place, same=False)
    if params.axis < 0 and indices.axis < 0:
        return params.but(same=False)
    if params.axis == indices.axis < batch and merged(params, indices) and params.is_plain:
        return params.but(same=False)
    return MIXED


def _own_rows(params: Told, indices: Told, axis: int) -> Told:
    """Rows that are found by their own numbers."""
    fine = params.base is Kind.ROWS and params.axis == axis and not params.place
    if not fine or params.some:
        return MIXED
    if indices.some and indices.axis < 0:
        return MIXED
    if indices.some:  # those of a mask of as many rows
        return params.but(axis=axis + indices.axis, some=indices.some)
    plain = params.outer == params.inner == sizes.ONE
    return params.but(axis=axis + indices.axis if indices.axis >= 0 else -1) if plain else MIXED


def gather_nd(node: Node) -> Told:
    params, indices = node.told[:2]
    if indices.place and params.has_rows:
        return _own_rows(params, indices, 0)
    if not params.is_const or not indices.has_rows or not indices.is_plain:
        return MIXED
    rank = node.rank(1)
    return (
        UNKNOWN if rank is None else MIXED if indices.axis == rank - 1 else indices.but(same=False)
    )


def scatter(node: Node) -> Told:
    """ScatterNd: into rows by their numbers, or sums by what samples say."""
    indices, updates = node.told[:2]
    if not (indices.has_rows and indices.axis == 0) or node.told[2].base not in (
        *(Kind.CONST, Kind.SIZE),
    ):
        return MIXED
    if updates.base not in (Kind.CONST, Kind.ROWS) or updates.place or updates.over:
        return MIXED
    if updates.has_rows and (updates.axis or not merged(indices, updates)):
        return MIXED
    numbers = node.numbers(2)
    if indices.place:
        own = numbers is not None and numbers.flat[0] == node.size and not indices.some
        return indices.but(place=False, power=updates.power) if own else MIXED
    return SUM.but(power=updates.power) if node.told[2].is_const else MIXED


def scattered_into(node: Node) -> Told:
    """TensorScatterAdd and the like, at constant places along dimensions before the samples'."""
    told, indices, updates = node.told
    ranks = [node.rank(place) for place in range(3)]
    depth = node.inputs[1].shape[-1] if ranks[1] else None
    if not indices.is_const or not told.is_plain or not updates.is_plain:
        return MIXED
    if depth is None or ranks[0] is None or ranks[1] is None or ranks[2] is None:
        return UNKNOWN
    shift = depth - (ranks[1] - 1)  # from a dimension of updates to the tensor's
    if updates.has_rows:
        updates = updates.but(axis=updates.axis + shift if updates.axis >= ranks[1] - 1 else -1)
    if any(one.has_rows and one.axis < depth for one in (told, updates)):
        return MIXED
    if not told.has_rows:
        return updates.but(same=False) if told.zero else UNKNOWN
    if not updates.has_rows:
        return told.but(same=False) if updates.zero else UNKNOWN
    return joined(told, updates).but()


def segments(node: Node) -> Told:
    """UnsortedSegmentSum: of rows by classes."""
    data, ids = node.told[:2]
    if not node.told[2].is_const or not ids.has_rows or ids.axis or not ids.is_plain:
        return MIXED
    if data.base not in (Kind.CONST, Kind.ROWS) or data.place or data.over:
        return MIXED
    return MIXED if data.has_rows and data.axis else SUM.but(power=data.power)


def counts(node: Node) -> Told:
    """Bincount and histograms: of all elements, or in each row."""
    told = node.told[0]
    if not told.has_rows or not told.is_plain or not all(o.is_const for o in node.told[1:]):
        return MIXED
    if node.type == "DenseBincount" and node.rank(0) == 2:
        return told.but() if told.axis == 0 else MIXED
    binary = node.type == "DenseBincount" and node.op.get_attr("binary_output")
    return MIXED if binary else SUM


@moves()
def tile(node: Node) -> Told:
    told, times = node.told[0], node.numbers(1)
    if times is None:
        return UNKNOWN
    others = [one for axis, one in enumerate(times.flat) if axis != told.axis]
    own = times.flat[told.axis]
    if any(one.power != 0 for one in (*others, own)):
        return MIXED  # as often as there are samples
    return told.but(outer=told.outer * own) if not told.place or own == sizes.ONE else MIXED


def tile_any(node: Node) -> Told:
    """Tile; a constant that is repeated for each sample becomes rows of it."""
    told, times = node.told[0], node.numbers(1)
    dims = node.dims(0)
    if not told.is_const or times is None or dims is None:
        return tile(node)
    return _spread(node, [size * often for size, often in zip(dims, times.flat)], dims)


def _spread(node: Node, after: list[Number], before: list[Number]) -> Told:
    """A constant of dimensions `before`, repeated up to `after`."""
    found = [axis for axis, size in enumerate(after) if size.power]
    if not found:
        return CONST if all(size.power == 0 for size in after) else UNKNOWN
    (axis,) = found if len(found) == 1 else (None,)
    if axis is None:
        return MIXED
    lead = len(after) - len(before)
    own = before[axis - lead] if axis >= lead else sizes.ONE
    inner = after[axis] / node.size
    if not inner.is_whole:
        return UNKNOWN
    return Told(Kind.ROWS, axis, inner=inner, same=True, loose=own == sizes.ONE)


def broadcast(node: Node) -> Told:
    told, after, before = node.told[0], node.numbers(1), node.dims(0)
    if before is None or any(one.base not in (Kind.CONST, Kind.SIZE) for one in node.told[1:]):
        return UNKNOWN
    if told.has_rows and told.axis >= 0:
        rank = node.output.shape.rank if after is None else after.size
        if rank is None:
            return UNKNOWN
        axis = told.axis + rank - len(before)
        if after is not None and any(one.power for p, one in enumerate(after.flat) if p != axis):
            return MIXED
        return told.but(axis=axis)
    if told.base not in (Kind.CONST, Kind.SUM) or after is None:
        return UNKNOWN if told.base in (Kind.CONST, Kind.SUM) else told.but()
    if all(one.power == 0 for one in after.flat):
        return told.but(zero=told.zero)
    if told.base is Kind.SUM:
        return MIXED
    spread = _spread(node, list(after.flat), before)
    return spread.but(power=told.power, over=told.over) if spread.has_rows else spread


def drawn(node: Node) -> Told:
    """Random numbers. Those for samples are told from what marks them (rules.DRAWN); others in a
    shape that depends on the number of samples are of a function that was made elsewhere."""
    told = made(node)
    if told.has_rows:
        node.analysis.foreign_draws.append(node.op)
    return told


def made(node: Node) -> Told:
    """In a shape that depends on the number of samples."""
    told = node.told[0]
    values = node.told[1:]
    if told.base is Kind.CONST and not told.power:
        return values[0].but(zero=values[0].zero) if node.type == "Fill" else CONST
    if node.type == "Fill" and not values[0].has_rows and values[0].base is Kind.CONST:
        value = values[0]
    elif node.type == "Fill" or not all(one.is_const for one in values):
        return MIXED
    else:
        value = CONST
    numbers = told.numbers
    if numbers is None:
        return UNKNOWN
    spread = _spread(node, list(numbers.flat), [])
    fill = node.type in ("Fill", "Empty")
    if not spread.has_rows:
        return spread
    return spread.but(power=value.power, over=value.over, same=fill, zero=value.zero and fill)


def padded(node: Node) -> Told:
    """Pad, where nothing is done along the dimension of the samples."""
    told, how = node.told[0], node.numbers(1)
    if not told.has_rows or told.axis < 0:
        return told.but() if told.is_const or told.base is Kind.SUM else together(node)
    if any(not one.is_const for one in node.told[2:]) or (
        node.type == "PadV2" and not told.is_plain
    ):
        return MIXED
    if how is None:
        return UNKNOWN
    return MIXED if any(one.factor for one in how[told.axis]) else told.but(same=False)


def searched(node: Node) -> Told:
    """Where values would stand in each row of what is sorted; or in one that is constant."""
    ordered, values = node.told
    if ordered.is_const and values.has_rows and values.is_plain:
        return values.but() if values.axis == 1 else UNKNOWN
    return layer(0, 1)(node)


def one_hot(node: Node) -> Told:
    told, rank = node.told[0], node.rank(0)
    if not told.has_rows or not told.is_plain or not all(o.is_const for o in node.told[1:]):
        return MIXED
    if rank is None or told.axis < 0:
        return told.but() if told.axis < 0 else UNKNOWN
    axis = node.op.get_attr("axis")
    return told.but(axis=told.axis + (0 <= axis <= told.axis), same=False)


def where(node: Node) -> Told:
    """The places of what is true."""
    told = node.told[0]
    if not told.has_rows or not told.is_plain or told.axis:
        return MIXED if told.axis >= 0 else UNKNOWN
    return Told(Kind.ROWS, some=_made(node, node.inputs[0]), place=True)


def _made(node: Node, mask: Any, depth: int = 3) -> Any:
    """By which ops: a script writes `labels != -100` once for each tensor that it masks."""
    while mask.op.type in ("Identity", "Reshape", "Squeeze"):
        mask = mask.op.inputs[0]
    op = mask.op
    if op.type == "Const":
        return op.get_attr("value").SerializeToString()
    if not depth or not op.inputs or op.op_def.is_stateful:
        return node.analysis.key(mask)
    sources = tuple(_made(node, source, depth - 1) for source in op.inputs)
    attributes = tuple((name, str(op.node_def.attr[name])) for name in sorted(op.node_def.attr))
    return (op.type, mask.value_index, attributes, sources)


def words(node: Node) -> Told:
    """StringSplitV2: any number of words of each sample, in order, and whose they are."""
    told = node.told[0]
    if not told.has_rows or not told.is_plain or told.some or told.axis:
        return MIXED if told.has_rows else UNKNOWN
    some = node.op.name
    outputs = (Told(Kind.ROWS, some=some, place=True), Told(Kind.ROWS, some=some), UNKNOWN)
    return outputs[node.output.value_index]


def padded_words(node: Node) -> Told:
    """RaggedTensorToTensor, of what `words` has split: rows, if a constant says how long they are.

    Else they are as long as the batch's longest.
    """
    values = node.told[1]
    if not (values.has_rows and values.some and values.is_plain and not values.axis):
        return UNKNOWN
    lengths = node.ints(0)
    if lengths is None or len(lengths) < 2 or min(lengths[1:]) < 0:
        return MIXED
    split = {_source(tensor) for tensor in node.inputs[3:]}
    one = len(split) == 1 and None not in split
    return Told(Kind.ROWS) if one and node.told[2].is_const else UNKNOWN


def _source(tensor: Any) -> str | None:
    """The name of the StringSplitV2 that says how long rows are, or whose values are."""
    while tensor.op.type in ("Cast", "Identity", "StridedSlice"):
        tensor = tensor.op.inputs[0]
    return str(tensor.op.name) if tensor.op.type == "StringSplitV2" else None


def numbered(node: Node) -> Told:
    """A Range whose length depends on the number of samples."""
    start, end, step = (node.numbers(place) for place in range(3))
    if end is None or sizes.whole(start) != [0] or sizes.whole(step) != [1]:
        return MIXED
    return Told(Kind.ROWS, place=True) if end.flat[0] == node.size else MIXED


def blocks(node: Node) -> Told:
    """SpaceToBatchND and its inverse: pieces of samples stand before samples."""
    told, block = node.told[0], node.numbers(1)
    if not told.has_rows or told.axis or not told.is_plain or told.place:
        return MIXED
    if block is None:
        return UNKNOWN
    count = sizes.product(block.flat)
    outer = told.outer * count if node.type == "SpaceToBatchND" else told.outer / count
    return told.but(outer=outer, same=False) if outer.is_whole else MIXED


def batch_norm(node: Node) -> Told:
    """FusedBatchNorm: by the moments of the batch, or by given ones."""
    if node.op.get_attr("is_training"):
        return MIXED
    told = node.told[0]
    if node.output.value_index == 0:
        return layer()(node)
    return CONST if told.is_plain else MIXED


def select(node: Node) -> Told:
    """Of Select's vectors of conditions each is for a row, whatever the other dimensions are."""
    ranks = [node.rank(place) for place in range(3)]
    if node.type == "Select" and ranks[0] not in (0, None, ranks[1]):
        if not all(one.is_plain and one.has_rows and not one.axis for one in node.told):
            return UNKNOWN
        both = merged(node.told[0], node.told[1])
        return MIXED if both is None else both.but(same=False)
    if all(one.is_plain for one in node.told):
        return together(node)
    if node.told[1].place and node.told[2].zero and _is_of_several(node):
        return node.told[1]  # a single sample has the number 0
    # Where the condition is of each sample, what both values are scaled with scales the result.
    condition, *values = node.told
    if condition.is_const and not any(one.has_rows for one in values):
        return joined(*values)
    scales = {(one.power, one.over) for one in values if not one.zero}
    if not condition.is_plain or len(scales) != 1 or any(one.place for one in values):
        return MIXED
    if not all(one.base in (Kind.ROWS, Kind.CONST) for one in values):
        return MIXED
    ((power, over),) = scales
    plain = [one.but(power=0, over=None) for one in node.told]
    lie = together(node.given(plain))
    return lie.but(power=power, over=over) if lie.has_rows else lie


def _is_of_several(node: Node) -> bool:
    """Whether the condition says that there is more than one sample, as vectorized loops ask."""
    op = node.inputs[0].op
    if op.type != "Greater":
        return False
    size, floor = (node.analysis.told(source).numbers for source in op.inputs)
    return sizes.whole(floor) == [1] and size is not None and size.flat[0] == node.size


def stepped(node: Node) -> Told:
    """CudnnRNN: samples are the second dimension, of sequences and states."""
    told = [one for one in node.told if one.has_rows]
    if any(one.axis > 1 or not one.is_plain for one in told):
        return UNKNOWN
    lie = node.told[0]
    return lie.but(same=False) if lie.has_rows and lie.axis == 1 else UNKNOWN
