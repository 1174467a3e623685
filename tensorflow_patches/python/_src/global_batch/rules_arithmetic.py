"""Rules for arithmetic: elementwise ops, sums, products, reductions."""

from __future__ import annotations

from typing import Any

from tensorflow.mpi._src.global_batch.kind import (
    CONST,
    MIXED,
    SIZE,
    SUM,
    UNKNOWN,
    Dependence,
    Kind,
    added,
    common_layout,
)
from tensorflow.mpi._src.global_batch.node import Node


def aligned(node: Node) -> Dependence:
    """The layout of samples after broadcasting the inputs, some of which have rows. MIXED if their
    layouts differ; UNKNOWN if an input without rows may have one element per sample."""
    if all(one.axis < 0 for one in node.deps if one.has_rows):
        return on_current_sample(node)
    ranks = [rank for i in range(len(node.deps)) if (rank := node.rank(i)) is not None]
    if len(ranks) < len(node.deps):
        return UNKNOWN
    layout: Dependence | None = None
    from_end = 0
    for dep, rank in zip(node.deps, ranks):
        if not dep.has_rows:
            continue
        if layout is None:
            layout, from_end = dep, rank - dep.axis
        elif rank - dep.axis != from_end or (dep.axis < 0) != (layout.axis < 0):
            return MIXED  # pairs of samples
        else:
            layout = common_layout(layout, dep)
            if layout is None:
                return MIXED
    assert layout is not None
    for dep, rank, tensor in zip(node.deps, ranks, node.inputs):
        if not dep.has_rows and rank >= from_end > 0:
            size = tensor.shape[rank - from_end]
            if size != 1 and not (node.rows and size):
                return UNKNOWN  # as a constant that depends on the index of a sample
    return layout.but(axis=max(ranks) - from_end)


def elementwise(node: Node) -> Dependence:
    deps = node.deps
    bases = {one.base for one in deps}
    if bases <= {Kind.CONST, Kind.SIZE}:
        same = all(one.power == 0 and not one.over for one in deps)
        return CONST if same else MIXED if any(one.over for one in deps) else SIZE
    if not all(one.is_plain for one in deps):
        return MIXED
    rows = [one for one in deps if one.has_rows]
    if len({one.mask for one in rows}) > 1:
        return MIXED
    layout = aligned(node)
    return layout.but(same=all(one.same for one in rows)) if layout.has_rows else layout


def quantized(node: Node) -> Dependence:
    """Quantization to a range that is given, or the range of all elements."""
    return elementwise(node) if node.op.get_attr("range_given") else MIXED


def on_current_sample(node: Node) -> Dependence:
    """An op on the current sample of a loop and constants."""
    rows = [one for one in node.deps if one.has_rows]
    return rows[0].but(same=all(one.same for one in rows))


def as_is(node: Node) -> Dependence:
    return node.deps[0]


def ensured(node: Node) -> Dependence:
    """EnsureShape, which fails on a part if the script fixes the number of samples."""
    dep, shape = node.deps[0], node.op.get_attr("shape")
    if not dep.has_rows or dep.axis < 0 or node.rows or shape.unknown_rank:
        return dep
    return MIXED if shape.dim[dep.axis].size >= 0 else dep


def zeros_like(node: Node) -> Dependence:
    dep, zero = node.deps[0], node.type == "ZerosLike"
    if dep.has_rows and not dep.mask:
        return Dependence(Kind.ROWS, dep.axis, dep.outer, dep.inner, same=True, zero=zero)
    by_size = not zero and dep.base is Kind.MIXED and not node.output.shape.is_fully_defined()
    lost = dep.has_rows or dep.base is Kind.UNKNOWN or by_size
    return UNKNOWN if lost else CONST.but(zero=zero)


def cast(node: Node) -> Dependence:
    """Cast; a rounded sum is no longer a sum, nor is a bool."""
    to, was = node.output.dtype, node.inputs[0].dtype
    kept = to.is_floating or (to != "bool" and not was.is_floating)
    return node.deps[0].but(zero=node.deps[0].zero) if kept else elementwise(node)


def sign(node: Node) -> Dependence:
    """Sign, which is the same with and without a division by the number of samples."""
    dep = node.deps[0]
    scaled = dep if dep.power is None else dep.but(power=0)
    return scaled if scaled.is_plain else elementwise(node)


def square(node: Node) -> Dependence:
    dep = node.deps[0]
    return elementwise(node) if dep.is_plain else _product(node, [dep, dep])


def add(node: Node) -> Dependence:
    if not any(one.has_rows for one in node.deps):
        return added(node.deps)
    if any(one.is_index for one in node.deps):
        return _next_index(node)
    rows = [one for one in node.deps if one.has_rows]
    others = [one for one in node.deps if not one.has_rows and not one.zero]
    layout = aligned(node)
    if not layout.has_rows:
        return layout
    if len({(one.power, one.over, one.mask) for one in rows}) > 1:
        return MIXED
    shifts = [one for one in others if one.base is Kind.SUM]
    consts = [one for one in others if one.base is Kind.CONST]
    same_scale = all((one.power, one.over) == (layout.power, layout.over) for one in consts)
    if len(shifts) + len(consts) < len(others) or not same_scale:
        return MIXED
    if shifts or any(one.base is Kind.ROWS_PLUS_MEAN for one in rows):
        means = all(one.kind is Kind.MEAN for one in shifts)
        fits = layout.is_plain or layout.base is Kind.ROWS_PLUS_MEAN
        if not means or not fits or layout.mask:
            return MIXED
        return layout.but(base=Kind.ROWS_PLUS_MEAN, same=False)
    return layout.but(same=all(one.same for one in rows))


def _next_index(node: Node) -> Dependence:
    """The index of a loop's current sample plus a constant, as the end of a slice; else MIXED."""
    rows = [one for one in node.deps if one.has_rows]
    alone = len(rows) == 1 and rows[0].axis < 0
    consts = all(one.is_const for one in node.deps if not one.has_rows)
    return rows[0].but(mask=True) if alone and consts else MIXED


def multiply(node: Node) -> Dependence:
    return _product(node, node.deps)


def _product(node: Node, deps: list[Dependence]) -> Dependence:
    """A product of factors with `deps`, broadcast as the inputs of `node`."""
    bases = [one.base for one in deps]
    if any(one.is_index for one in deps) or len([one for one in deps if one.over]) > 1:
        return MIXED
    if Kind.SIZE in bases or None in (one.power for one in deps):
        return SIZE if set(bases) <= {Kind.SIZE, Kind.CONST} else MIXED
    power = sum(one.power or 0 for one in deps)
    over = next((one.over for one in deps if one.over), None)
    zero = any(one.zero for one in deps)
    varying = [one for one in deps if one.base is not Kind.CONST]
    if not varying:
        return CONST.but(power=power, over=over, zero=zero)
    if all(one.base is Kind.ROWS for one in varying):
        if len({one.mask for one in varying}) > 1:
            return MIXED
        layout = aligned(node)
        same = all(one.same for one in varying)
        return layout.but(power=power, over=over, same=same) if layout.has_rows else layout
    if len(varying) > 1:
        return MIXED
    (one,) = varying
    if one.base is Kind.SUM:
        return one.but(power=power, over=over)
    if one.base is Kind.ROWS_PLUS_MEAN:
        return aligned(node) if power == 0 and not over else MIXED
    return one.but() if power == 0 and not over else MIXED


def gradient(upstream: int) -> Any:
    """An op that is linear in its input `upstream`, the upstream gradient."""

    def rule(node: Node) -> Dependence:
        others = [one for i, one in enumerate(node.deps) if i != upstream]
        return _product(node, node.deps) if all(one.is_plain for one in others) else MIXED

    return rule


def divide(node: Node) -> Dependence:
    numerator, divisor = node.deps
    if divisor.base is Kind.CONST and not divisor.over:
        power = _static_power(node) if node.rows and divisor.power == 0 else divisor.power
        return _product(node, [numerator, divisor.but(power=-(power or 0), zero=False)])
    if divisor.base is Kind.ROWS:
        plain = divisor.is_plain and numerator.base in (Kind.ROWS, Kind.CONST)
        return _product(node, node.deps) if plain else MIXED
    if divisor.base in (Kind.SIZE, Kind.CONST):
        sizes = numerator.base in (Kind.SIZE, Kind.CONST) and not (numerator.over or divisor.over)
        return SIZE if sizes else MIXED
    if Kind.UNKNOWN in (numerator.base, divisor.base):
        return MIXED if Kind.MIXED in (numerator.base, divisor.base) else UNKNOWN
    if numerator.over or numerator.base not in (Kind.CONST, Kind.ROWS, Kind.SUM):
        return MIXED
    if node.analysis.divisor(node.inputs[1]) is None:
        return MIXED
    return numerator.but(over=node.analysis.key(node.inputs[1]))


def reciprocal(node: Node) -> Dependence:
    dep = node.deps[0]
    if dep.base is Kind.CONST and not dep.over:
        return dep.but(power=-(dep.power or 0))
    if dep.base is Kind.UNKNOWN:
        return UNKNOWN
    if dep.has_rows or dep.base is Kind.SIZE:
        return elementwise(node)
    if node.analysis.divisor(node.inputs[0]) is None:
        return MIXED
    return CONST.but(over=node.analysis.key(node.inputs[0]))


def _static_power(node: Node) -> int:
    """1 if the divisor, a constant, may be the static number of samples, or of the elements of
    samples that the numerator sums; otherwise 0. A constant that equals it by chance is mistaken
    for it."""
    numbers = node.numbers(1)
    if numbers is None:
        value = _evaluated(node.inputs[1])
    else:
        value = numbers.flat[0].value if numbers.size == 1 else None
    summed = node.inputs[0].op
    is_sum = summed.type == "Sum" and not node.deps[0].is_const
    count = summed.inputs[0].shape.num_elements() if is_sum else None
    return int(value is not None and value in (node.rows, count))


def _evaluated(tensor: Any) -> Any:
    """The value of a scalar that TensorFlow computes from constants, such as a sum of ones."""
    from tensorflow.python.framework import smart_cond

    value = smart_cond.smart_constant_value(tensor) if tensor.shape.rank == 0 else None
    return None if value is None else value.item()


def reduce(node: Node) -> Dependence:
    dep, rounds = node.deps[0], node.type == "Mean" and node.output.dtype.is_integer
    linear = node.type in ("Sum", "Mean") and not rounds
    if dep.base in (Kind.SUM, Kind.LINEAR):
        return dep.but() if linear else MIXED
    if dep.base in (Kind.CONST, Kind.SIZE):
        return dep.but(zero=dep.zero) if linear or dep.is_const else MIXED if dep.over else SIZE
    rank, axes = node.rank(0), node.ints(1)
    if dep.axis < 0:
        return dep.but() if linear or dep.is_plain else MIXED
    if axes is None or rank is None:
        return UNKNOWN
    reduced = {axis % max(rank, 1) for axis in axes}
    if dep.axis not in reduced:
        before = 0 if node.op.get_attr("keep_dims") else sum(axis < dep.axis for axis in reduced)
        fine = linear or dep.is_plain
        return dep.but(axis=dep.axis - before) if fine and not dep.is_index else MIXED
    return _over_samples(node, dep)


def _over_samples(node: Node, dep: Dependence) -> Dependence:
    """A reduction over the dimension of samples."""
    name = node.type
    if dep.is_index or dep.power is None:
        return MIXED
    if dep.base is Kind.ROWS_PLUS_MEAN:
        return SUM.but(power=-1) if name == "Mean" else MIXED
    if dep.mask:
        return SUM.but(power=dep.power, over=dep.over) if name == "Sum" else MIXED
    if name == "Mean":
        if dep.same:
            return CONST.but(power=dep.power, over=dep.over)
        if node.output.dtype.is_integer:  # rounded down
            return MIXED
        return SUM.but(power=dep.power - 1, over=dep.over)
    if name == "Sum":
        if dep.same:
            return CONST.but(power=dep.power + 1, over=dep.over)
        return SUM.but(power=dep.power, over=dep.over)
    if dep.same and dep.is_plain:
        return SIZE if name in ("Prod", "EuclideanNorm") else CONST
    return MIXED


def l2_loss(node: Node) -> Dependence:
    dep = node.deps[0]
    if dep.base is Kind.CONST:
        return CONST if dep.is_const else SIZE
    return SUM if dep.base is Kind.ROWS and dep.is_plain and dep.axis >= 0 else MIXED


def bias_gradient(node: Node) -> Dependence:
    """A sum over all dimensions except that of channels."""
    dep = node.deps[0]
    if not dep.has_rows:
        return dep.but()
    if dep.axis != 0:
        return UNKNOWN
    if dep.base is not Kind.ROWS or dep.is_index:
        return MIXED
    return SUM.but(power=dep.power, over=dep.over)
