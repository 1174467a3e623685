"""How numbers make the kinds of tensors: element by element, sums, products, reductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorflow.mpi._src.global_batch.kind import ROWS, Kind


def linear(op: Any, kinds: list[Kind]) -> Kind:
    return kinds[0]


def cast(op: Any, kinds: list[Kind]) -> Kind:
    to_float = op.outputs[0].dtype.is_floating or not op.inputs[0].dtype.is_floating
    return kinds[0] if to_float else unary(op, kinds)


def unary(op: Any, kinds: list[Kind]) -> Kind:
    kind = kinds[0]
    if kind in (Kind.ROWS, Kind.ONES, Kind.SIZE, Kind.SELECTED, Kind.COLUMNS):
        return kind
    if kind is Kind.INVERSE:
        return Kind.SIZE
    return Kind.UNKNOWN if kind is Kind.PARTS else Kind.MIXED


def likes(op: Any, kinds: list[Kind]) -> Kind:
    return Kind.ONES if kinds[0] in ROWS else Kind.UNKNOWN


def add(op: Any, kinds: list[Kind]) -> Kind:
    found = set(kinds)
    if found & (ROWS | {Kind.SELECTED, Kind.COLUMNS}):
        if found & ROWS and found <= ROWS | {Kind.CONST, Kind.SIZE, Kind.MEAN, Kind.SHIFTED}:
            if found & {Kind.MEAN, Kind.SHIFTED}:
                return Kind.SHIFTED if _aligned(op, kinds) else Kind.UNKNOWN
        return together(op, kinds)
    if found <= {Kind.SHIFTED, Kind.CONST, Kind.MEAN} and Kind.SHIFTED in found:
        return Kind.SHIFTED
    if found <= {Kind.PARTS}:
        return Kind.PARTS if _aligned(op, kinds) else Kind.UNKNOWN
    return added(found)


def added(found: set[Kind]) -> Kind:
    """Of terms without rows."""
    if found & {Kind.MIXED}:
        return Kind.MIXED
    if not found <= {Kind.CONST, Kind.SIZE, Kind.INVERSE, Kind.MEAN, Kind.SUM, Kind.LINEAR}:
        return Kind.UNKNOWN
    if found <= {Kind.CONST, Kind.SIZE, Kind.INVERSE}:
        return Kind.SIZE
    if found <= {Kind.CONST, Kind.MEAN}:
        return Kind.MEAN
    if found == {Kind.SUM}:
        return Kind.SUM
    return Kind.LINEAR if found & {Kind.SUM, Kind.LINEAR} else Kind.UNKNOWN


def multiply(op: Any, kinds: list[Kind]) -> Kind:
    found = set(kinds)
    if found <= ROWS | {Kind.CONST, Kind.SELECTED, Kind.COLUMNS}:
        return together(op, kinds)
    if Kind.CONST in found and len(found) == 2:
        (other,) = found - {Kind.CONST}
        return other
    if found <= {Kind.SIZE, Kind.INVERSE}:
        return Kind.SIZE
    if Kind.INVERSE in found and len(found) == 2:
        (other,) = found - {Kind.INVERSE}
        return {Kind.SUM: Kind.MEAN, Kind.ROWS: Kind.PARTS, Kind.ONES: Kind.PARTS}.get(
            other, Kind.UNKNOWN
        )
    if found == {Kind.SIZE, Kind.MEAN}:
        return Kind.SUM
    if Kind.SIZE in found or Kind.PARTS in found:
        return Kind.UNKNOWN
    return Kind.MIXED


def divide(op: Any, kinds: list[Kind]) -> Kind:
    over, by = kinds
    if by is Kind.CONST:
        return multiply(op, kinds)
    if by is Kind.SIZE:
        return {
            Kind.CONST: Kind.INVERSE, Kind.SIZE: Kind.SIZE, Kind.SUM: Kind.MEAN,
            Kind.ROWS: Kind.PARTS, Kind.ONES: Kind.PARTS,
        }.get(over, Kind.UNKNOWN)  # fmt: skip
    return together(op, kinds)


def together(op: Any, kinds: list[Kind]) -> Kind:
    """Element by element, in any way."""
    found = set(kinds)
    if found <= {Kind.CONST, Kind.SIZE, Kind.INVERSE}:
        return Kind.SIZE
    if found <= {Kind.CONST, Kind.SELECTED}:
        return Kind.SELECTED
    if Kind.COLUMNS in found:
        if found & ROWS:
            return Kind.MIXED
        return Kind.COLUMNS if found <= {Kind.CONST, Kind.COLUMNS} else Kind.UNKNOWN
    if found & ROWS and found <= ROWS | {Kind.CONST, Kind.SIZE}:
        if _aligned(op, kinds):
            return Kind.ROWS
        ranks = [t.shape.rank for t, kind in zip(op.inputs, kinds) if kind in ROWS]
        return Kind.MIXED if None not in ranks and len(set(ranks)) > 1 else Kind.UNKNOWN
    if found & {Kind.SUM, Kind.MEAN, Kind.LINEAR, Kind.SHIFTED}:
        return Kind.MIXED
    return Kind.UNKNOWN


def _aligned(op: Any, kinds: Sequence[Kind]) -> bool:
    """Whether all rows of the inputs stand along the same dimension when they are broadcast."""
    ranks = [tensor.shape.rank for tensor in op.inputs]
    if None in ranks:
        return False
    rows = {rank for rank, kind in zip(ranks, kinds) if kind in (*ROWS, Kind.SHIFTED, Kind.PARTS)}
    if len(rows) != 1:
        return False
    (most,) = rows
    for tensor, rank, kind in zip(op.inputs, ranks, kinds):
        if kind in (*ROWS, Kind.SHIFTED, Kind.PARTS):
            continue
        if rank > most or (rank == most and tensor.shape[0] != 1):
            return False
    return True


def axes_of(tensor: Any, rank: int | None) -> set[int] | None:
    from tensorflow.python.framework import tensor_util

    axes = tensor_util.constant_value(tensor)
    if axes is None or rank is None:
        return None
    return {int(axis) % max(rank, 1) for axis in axes.reshape(-1)}


def reduce(op: Any, kinds: list[Kind]) -> Kind:
    kind, rank = kinds[0], op.inputs[0].shape.rank
    if kind is Kind.SIZE:
        return Kind.SIZE
    linear = op.type in ("Sum", "Mean")
    if kind in (Kind.SUM, Kind.MEAN, Kind.LINEAR):
        return kind if linear else Kind.MIXED
    axes = axes_of(op.inputs[1], rank)
    if axes is None or kind is Kind.COLUMNS:
        return Kind.UNKNOWN
    if 0 not in axes:
        if kind in (*ROWS, Kind.SELECTED) or linear and kind in (Kind.PARTS, Kind.SHIFTED):
            return kind
        return Kind.MIXED if kind is Kind.SHIFTED else Kind.UNKNOWN
    if kind is Kind.ONES:
        return {"Sum": Kind.SIZE, "Prod": Kind.UNKNOWN}.get(op.type, Kind.CONST)
    if kind is Kind.PARTS:
        return Kind.MEAN if op.type == "Sum" else Kind.UNKNOWN
    if kind is Kind.SHIFTED:
        return {"Mean": Kind.MEAN, "Sum": Kind.UNKNOWN}.get(op.type, Kind.MIXED)
    if kind is Kind.SELECTED:
        return Kind.SUM if op.type == "Sum" else Kind.MIXED
    return {"Sum": Kind.SUM, "Mean": Kind.MEAN}.get(op.type, Kind.MIXED)


def l2_loss(op: Any, kinds: list[Kind]) -> Kind:
    return Kind.SUM if kinds[0] in ROWS else Kind.MIXED
