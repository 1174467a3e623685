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
    merged,
)
from tensorflow.mpi._src.global_batch.node import Node


def aligned(node: Node, *places: int) -> Dependence:
    """The layout of samples after broadcasting inputs (all, or these); or MIXED."""
    chosen = places or range(len(node.deps))
    pairs = [(node.deps[place], node.rank(place)) for place in chosen]
    ranks = [rank for _, rank in pairs if rank is not None]
    if len(ranks) < len(pairs):
        return UNKNOWN
    lie: Dependence | None = None
    from_end = 0
    for dep, rank in zip((dep for dep, _ in pairs), ranks):
        if not dep.has_rows:
            continue
        if lie is None:
            lie, from_end = dep, rank - dep.axis
        elif rank - dep.axis != from_end or (dep.axis < 0) != (lie.axis < 0):
            return MIXED  # pairs of samples
        else:
            lie = merged(lie, dep)
            if lie is None:
                return MIXED
    assert lie is not None
    for place, (dep, rank) in zip(chosen, pairs):
        if not dep.has_rows and rank is not None and rank >= from_end > 0:
            size = node.inputs[place].shape[rank - from_end]
            if size != 1 and not (node.rows and size):
                return UNKNOWN  # a constant that depends on the index of a sample
    return lie.but(axis=max(ranks) - from_end)


def together(node: Node) -> Dependence:
    """Any elementwise op."""
    deps = node.deps
    bases = {one.base for one in deps}
    if bases <= {Kind.CONST, Kind.SIZE}:
        same = all(one.power == 0 and not one.over for one in deps)
        return CONST if same else MIXED if any(one.over for one in deps) else SIZE
    if not all(one.is_plain for one in deps):
        return MIXED
    rows = [one for one in deps if one.has_rows]
    if len({one.some for one in rows}) > 1:
        return MIXED
    lie = of_one(node) if all(one.axis < 0 for one in rows) else aligned(node)
    return lie.but(same=all(one.same for one in rows)) if lie.has_rows else lie


def of_one(node: Node) -> Dependence:
    """An op on the current sample of a loop, and constants."""
    rows = [one for one in node.deps if one.has_rows]
    return rows[0].but(same=all(one.same for one in rows))


def as_is(node: Node) -> Dependence:
    return node.deps[0]


def zeros_like(node: Node) -> Dependence:
    dep, zero = node.deps[0], node.type == "ZerosLike"
    if dep.has_rows and not dep.some:
        return Dependence(Kind.ROWS, dep.axis, dep.outer, dep.inner, same=True, zero=zero)
    return UNKNOWN if dep.has_rows or dep.base is Kind.UNKNOWN else CONST.but(zero=zero)


def cast(node: Node) -> Dependence:
    """Cast; a rounded sum is no longer a sum."""
    kept = node.output.dtype.is_floating or not node.inputs[0].dtype.is_floating
    return node.deps[0].but(zero=node.deps[0].zero) if kept else together(node)


def sign(node: Node) -> Dependence:
    """Sign, which does not depend on a division by the number of samples."""
    dep = node.deps[0]
    known = dep.has_rows and dep.base is Kind.ROWS and not dep.is_index and dep.power is not None
    return dep.but(power=0, over=None) if known else together(node)


def square(node: Node) -> Dependence:
    dep = node.deps[0]
    return together(node) if dep.is_plain else _product(node, [dep, dep])


def add(node: Node) -> Dependence:
    if not any(one.has_rows for one in node.deps):
        return added(node.deps)
    if any(one.is_index for one in node.deps):
        return _next_place(node)
    rows = [one for one in node.deps if one.has_rows]
    others = [one for one in node.deps if not one.has_rows and not one.zero]
    lie = of_one(node) if all(one.axis < 0 for one in rows) else aligned(node)
    if not lie.has_rows or len({(one.power, one.over, one.some) for one in rows}) > 1:
        return lie if not lie.has_rows else MIXED
    shifts = [one for one in others if one.base is Kind.SUM]
    consts = [one for one in others if one.base is Kind.CONST]
    alike = all((one.power, one.over) == (lie.power, lie.over) for one in consts)
    if len(shifts) + len(consts) < len(others) or not alike:
        return MIXED
    if shifts or any(one.base is Kind.ROWS_PLUS_MEAN for one in rows):
        means = all(one.kind is Kind.MEAN for one in shifts) and (
            lie.is_plain or lie.base is Kind.ROWS_PLUS_MEAN
        )
        return lie.but(base=Kind.ROWS_PLUS_MEAN, same=False) if means and not lie.some else MIXED
    return lie.but(same=all(one.same for one in rows))


def _next_place(node: Node) -> Dependence:
    """Whether it is the index of a loop's current sample plus 1, as in the end of a slice."""
    places = [one for one in node.deps if one.has_rows]
    alone = len(places) == 1 and places[0].axis < 0
    consts = all(one.is_const for one in node.deps if not one.has_rows)
    return places[0].but(some=True) if alone and consts else MIXED


def multiply(node: Node) -> Dependence:
    return _product(node, node.deps)


def _product(node: Node, deps: list[Dependence]) -> Dependence:
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
        if len({one.some for one in varying}) > 1:
            return MIXED
        lie = of_one(node) if all(one.axis < 0 for one in varying) else aligned(node)
        same = all(one.same for one in varying)
        return lie.but(power=power, over=over, same=same) if lie.has_rows else lie
    if len(varying) > 1:
        return MIXED
    (one,) = varying
    if one.base is Kind.SUM:
        return one.but(power=power, over=over)
    if one.base is Kind.ROWS_PLUS_MEAN:
        return aligned(node) if power == 0 and not over else MIXED
    return one.but() if power == 0 and not over else MIXED


def gradient(first: int) -> Any:
    """An op that is linear in its input `first`, the upstream gradient."""

    def rule(node: Node) -> Dependence:
        others = [one for place, one in enumerate(node.deps) if place != first]
        return _product(node, node.deps) if all(one.is_plain for one in others) else MIXED

    return rule


def divide(node: Node) -> Dependence:
    over, by = node.deps
    if by.base is Kind.CONST and not by.over:
        power = _static_power(node) if node.rows and by.power == 0 else by.power
        return _product(node, [over, by.but(power=-(power or 0), zero=False)])
    if by.base is Kind.ROWS:
        plain = by.is_plain and over.base in (Kind.ROWS, Kind.CONST)
        return _product(node, node.deps) if plain else MIXED
    if by.base in (Kind.SIZE, Kind.CONST):
        return SIZE if over.base in (Kind.SIZE, Kind.CONST) and not over.over else MIXED
    if Kind.UNKNOWN in (over.base, by.base):
        return MIXED if Kind.MIXED in (over.base, by.base) else UNKNOWN
    if over.over or over.base not in (Kind.CONST, Kind.ROWS, Kind.SUM):
        return MIXED
    if node.analysis.divisor(node.inputs[1]) is None:
        return MIXED
    return over.but(over=node.analysis.key(node.inputs[1]))


def reciprocal(node: Node) -> Dependence:
    dep = node.deps[0]
    if dep.base is Kind.CONST and not dep.over:
        return dep.but(power=-(dep.power or 0))
    if dep.has_rows or dep.base in (Kind.SIZE, Kind.UNKNOWN):
        return UNKNOWN if dep.base is Kind.UNKNOWN else together(node)
    if node.analysis.divisor(node.inputs[0]) is None:
        return MIXED
    return CONST.but(over=node.analysis.key(node.inputs[0]))


def _static_power(node: Node) -> int:
    """1 if a constant equals the static number of samples, otherwise 0."""
    numbers = node.numbers(1)
    if numbers is None:
        value = _evaluated(node.inputs[1])
    else:
        value = numbers.flat[0].value if numbers.size == 1 else None
    summed = node.inputs[0].op
    count = summed.inputs[0].shape.num_elements() if summed.type == "Sum" else None
    return int(value is not None and value in (node.rows, count))


def _evaluated(tensor: Any) -> Any:
    """The value of a scalar that TensorFlow computes from constants, such as a sum of ones."""
    from tensorflow.python.framework import smart_cond

    value = smart_cond.smart_constant_value(tensor) if tensor.shape.rank == 0 else None
    return None if value is None else value.item()


_LINEAR = ("Sum", "Mean")


def reduce(node: Node) -> Dependence:
    dep, linear = node.deps[0], node.type in _LINEAR
    if dep.base in (Kind.SUM, Kind.LINEAR):
        return dep.but() if linear else MIXED
    if dep.base in (Kind.CONST, Kind.SIZE):
        return dep.but(zero=dep.zero) if linear or dep.is_const else MIXED if dep.over else SIZE
    rank, axes = node.rank(0), node.ints(1)
    if dep.axis < 0:
        return dep.but() if linear or dep.is_plain else MIXED
    if axes is None or rank is None:
        return UNKNOWN
    gone = {axis % max(rank, 1) for axis in axes}
    if dep.axis not in gone:
        before = 0 if node.op.get_attr("keep_dims") else sum(axis < dep.axis for axis in gone)
        fine = linear or dep.is_plain
        return dep.but(axis=dep.axis - before) if fine and not dep.is_index else MIXED
    return _over_samples(node, dep)


def _over_samples(node: Node, dep: Dependence) -> Dependence:
    how = node.type
    if dep.is_index or dep.power is None:
        return MIXED
    if dep.base is Kind.ROWS_PLUS_MEAN:
        return SUM.but(power=-1) if how == "Mean" else MIXED
    if dep.some:
        return SUM.but(power=dep.power, over=dep.over) if how == "Sum" else MIXED
    if how == "Mean":
        if dep.same:
            return CONST.but(power=dep.power, over=dep.over)
        return SUM.but(power=dep.power - 1, over=dep.over)
    if how == "Sum":
        if dep.same:
            return CONST.but(power=dep.power + 1, over=dep.over)
        return SUM.but(power=dep.power, over=dep.over)
    if dep.same and dep.is_plain:
        return SIZE if how in ("Prod", "EuclideanNorm") else CONST
    return MIXED


def l2_loss(node: Node) -> Dependence:
    dep = node.deps[0]
    if dep.base is Kind.CONST:
        return CONST if dep.is_const else SIZE
    return SUM if dep.base is Kind.ROWS and dep.is_plain and dep.axis >= 0 else MIXED


def bias_gradient(node: Node) -> Dependence:
    """A sum over all dimensions except that of channels."""
    dep = node.deps[0]
    if dep.has_rows:
        return _over_samples_of_sum(dep) if dep.axis == 0 else UNKNOWN
    return dep.but()


def _over_samples_of_sum(dep: Dependence) -> Dependence:
    if dep.base is not Kind.ROWS or dep.is_index:
        return MIXED
    return SUM.but(power=dep.power, over=dep.over)
