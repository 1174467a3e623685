"""How ops that move numbers about, or multiply matrices, make the kinds of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorflow.mpi._src.global_batch.kind import ROWS, Kind
from tensorflow.mpi._src.global_batch.rules_numbers import added, axes_of, together


def reshape(op: Any, kinds: list[Kind]) -> Kind:
    kind = kinds[0]
    if kind not in (*ROWS, Kind.PARTS, Kind.SHIFTED):
        return kind if kind in (Kind.SUM, Kind.MEAN, Kind.LINEAR, Kind.SIZE) else Kind.UNKNOWN
    before, after = op.inputs[0].shape, op.outputs[0].shape
    if before.rank is None or after.rank in (None, 0):
        return Kind.UNKNOWN
    if before[0] is None and after[0] is not None and kind in ROWS:
        return Kind.MIXED  # any number of samples, in so many rows
    inner, outer = before[1:].num_elements(), after[1:].num_elements()
    if None in (inner, outer):
        same = before[1:].as_list() == after[1:].as_list() and None not in after[2:].as_list()
        return kind if same or _keeps_size(op.inputs[1]) else Kind.UNKNOWN
    # A row may become several. Several that become one may have been one before.
    return kind if outer and inner % outer == 0 else Kind.UNKNOWN


def _keeps_size(shape: Any) -> bool:
    """Whether a shape's first number is the first of another's, of rows."""
    first = shape.op.inputs[0] if shape.op.type == "Pack" else None
    if first is None or first.op.type != "StridedSlice":
        return False
    from tensorflow.python.framework import tensor_util

    begin = tensor_util.constant_value(first.op.inputs[1])
    return first.op.inputs[0].op.type == "Shape" and begin is not None and int(begin[0]) == 0


def expand(op: Any, kinds: list[Kind]) -> Kind:
    kind, rank = kinds[0], op.inputs[0].shape.rank
    if kind not in (*ROWS, Kind.SHIFTED, Kind.PARTS):
        return kind if kind in (Kind.SUM, Kind.MEAN, Kind.LINEAR, Kind.SIZE) else Kind.UNKNOWN
    axes = axes_of(op.inputs[1], None if rank is None else rank + 1)
    if axes is None:
        return Kind.UNKNOWN
    return kind if 0 not in axes else Kind.COLUMNS if kind in ROWS else Kind.UNKNOWN


def squeeze(op: Any, kinds: list[Kind]) -> Kind:
    kind, rank = kinds[0], op.inputs[0].shape.rank
    if kind in (Kind.SUM, Kind.MEAN, Kind.LINEAR, Kind.SIZE, Kind.SELECTED):
        return kind
    dims = list(op.get_attr("squeeze_dims"))
    if not dims or rank is None or 0 in {dim % rank for dim in dims}:
        return Kind.UNKNOWN
    return kind


def transpose(op: Any, kinds: list[Kind]) -> Kind:
    from tensorflow.python.framework import tensor_util

    order = tensor_util.constant_value(op.inputs[1])
    if kinds[0] in (Kind.SUM, Kind.MEAN, Kind.LINEAR):
        return kinds[0]
    if order is None or kinds[0] not in (*ROWS, Kind.COLUMNS):
        return Kind.UNKNOWN
    if int(order[0]) == 0:
        return kinds[0]
    if kinds[0] is Kind.COLUMNS:
        return Kind.ROWS if len(order) == 2 else Kind.UNKNOWN
    return Kind.COLUMNS


def matmul(op: Any, kinds: list[Kind]) -> Kind:
    names = ("transpose_a", "transpose_b") if op.type == "MatMul" else ("adj_x", "adj_y")
    flips = [bool(op.get_attr(name)) for name in names]
    ranks = [tensor.shape.rank for tensor in op.inputs]
    if not set(kinds) <= {*ROWS, Kind.COLUMNS, Kind.CONST} or None in ranks:
        linear = {Kind.SUM, Kind.MEAN}
        if set(kinds) & linear:
            return next(iter(set(kinds) & linear)) if Kind.CONST in kinds else Kind.MIXED
        return Kind.UNKNOWN
    if ranks[0] > 2 and kinds[0] in ROWS and kinds[1] in (*ROWS, Kind.CONST):
        same = ranks[0] == ranks[1] or (kinds[1] is Kind.CONST and ranks[1] == 2)
        return Kind.ROWS if same else Kind.UNKNOWN
    if ranks != [2, 2]:
        return Kind.UNKNOWN
    turned = {Kind.ROWS: Kind.COLUMNS, Kind.ONES: Kind.COLUMNS, Kind.COLUMNS: Kind.ROWS}
    left, right = (turned.get(k, k) if flip else k for k, flip in zip(kinds, flips))
    if left in ROWS and right is Kind.CONST:
        return Kind.ROWS
    if right in ROWS and left is not Kind.COLUMNS or left in ROWS and right is Kind.COLUMNS:
        return Kind.MIXED  # every sample with every other
    if left is Kind.COLUMNS and right in ROWS:
        return Kind.SUM
    return Kind.UNKNOWN


def einsum(op: Any, kinds: list[Kind]) -> Kind:
    inputs, _, result = op.get_attr("equation").decode().partition("->")
    names = [term[0] for term, kind in zip(inputs.split(","), kinds) if kind in ROWS and term]
    if not set(kinds) <= {*ROWS, Kind.CONST} or "..." in inputs or not names:
        return Kind.UNKNOWN
    if len(set(names)) > 1:
        return Kind.MIXED
    if result.startswith(names[0]):
        return Kind.ROWS
    return Kind.SUM if names[0] not in result else Kind.UNKNOWN


def on_last_axis(op: Any, kinds: list[Kind]) -> Kind:
    """Softmax, top k and the like: between the numbers of a row, if it has any."""
    if not set(kinds) <= {*ROWS, Kind.CONST} or kinds[0] not in ROWS:
        return together(op, kinds) if Kind.MEAN in kinds or Kind.SUM in kinds else Kind.UNKNOWN
    rank = op.inputs[0].shape.rank
    return Kind.UNKNOWN if rank is None else Kind.ROWS if rank > 1 else Kind.MIXED


def cross_entropy(op: Any, kinds: list[Kind]) -> Kind:
    return Kind.ROWS if set(kinds) <= ROWS else together(op, kinds)


def along(place: int) -> Callable[[Any, list[Kind]], Kind]:
    """Of an op that works along the axis that is its input number `place`."""

    def rule(op: Any, kinds: list[Kind]) -> Kind:
        axes = axes_of(op.inputs[place], op.inputs[0].shape.rank)
        if axes is None or kinds[0] not in ROWS:
            return Kind.UNKNOWN
        return Kind.MIXED if 0 in axes else Kind.ROWS

    return rule


def concat(op: Any, kinds: list[Kind]) -> Kind:
    parts = set(kinds[:-1])
    if parts <= {Kind.CONST, Kind.SIZE}:
        return Kind.SIZE
    if parts <= ROWS:
        return Kind.ROWS  # along the first dimension, too: each sample as often
    return added(parts) if parts & {Kind.MEAN, Kind.SUM} and not parts & ROWS else Kind.UNKNOWN


def pack(op: Any, kinds: list[Kind]) -> Kind:
    found = set(kinds)
    if found <= ROWS:
        return Kind.COLUMNS if op.get_attr("axis") == 0 else Kind.ROWS
    return added(found)


def slice(op: Any, kinds: list[Kind]) -> Kind:
    kind = kinds[0]
    if kind in (Kind.SUM, Kind.MEAN, Kind.LINEAR, Kind.SIZE):
        return kind
    if kind not in (*ROWS, Kind.SHIFTED, Kind.PARTS):
        return Kind.UNKNOWN
    masks = {
        name: int(op.get_attr(f"{name}_mask"))
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    if masks["ellipsis"] & 1:
        rank, given = op.inputs[0].shape.rank, op.inputs[1].shape[0]
        new = bin(masks["new_axis"]).count("1")
        return kind if None not in (rank, given) and given - 1 - new < rank else Kind.UNKNOWN
    if masks["new_axis"] & 1:
        return Kind.COLUMNS if kind in ROWS else Kind.UNKNOWN
    from tensorflow.python.framework import tensor_util

    strides = tensor_util.constant_value(op.inputs[3])
    everything = masks["begin"] & masks["end"] & 1 and not masks["shrink_axis"] & 1
    return kind if everything and strides is not None and strides[0] == 1 else Kind.UNKNOWN


def gather(op: Any, kinds: list[Kind]) -> Kind:
    params, indices = kinds[:2]
    if params is Kind.SIZE or params in (Kind.SUM, Kind.MEAN) and indices is Kind.CONST:
        return params
    if params is Kind.CONST and indices in ROWS:
        axes = axes_of(op.inputs[2], op.inputs[0].shape.rank) if len(kinds) > 2 else {0}
        return Kind.ROWS if axes == {0} else Kind.UNKNOWN
    if op.type != "GatherV2" or params not in ROWS:
        return Kind.UNKNOWN
    if indices is Kind.SELECTED:
        return Kind.SELECTED
    if indices in ROWS:
        return Kind.ROWS if op.get_attr("batch_dims") > 0 else Kind.UNKNOWN
    axes = axes_of(op.inputs[2], op.inputs[0].shape.rank)
    return Kind.ROWS if axes is not None and 0 not in axes else Kind.UNKNOWN


def first_of_constants(op: Any, kinds: list[Kind]) -> Kind:
    ok = kinds[0] in ROWS and all(kind is Kind.CONST for kind in kinds[1:])
    return Kind.ROWS if ok else Kind.UNKNOWN


def repeat(op: Any, kinds: list[Kind]) -> Kind:
    """Tile and Pad, where nothing is done along the first dimension."""
    from tensorflow.python.framework import tensor_util

    how = tensor_util.constant_value(op.inputs[1])
    if how is None or kinds[0] not in (*ROWS, Kind.PARTS):
        return Kind.UNKNOWN
    nothing = 1 if op.type == "Tile" else 0
    return kinds[0] if (how[0] == nothing).all() else Kind.UNKNOWN


def of_size(op: Any, kinds: list[Kind]) -> Kind:
    """Made in a shape that depends on the number of samples."""
    if kinds[0] is not Kind.SIZE or any(kind is not Kind.CONST for kind in kinds[1:]):
        return Kind.UNKNOWN
    return Kind.ONES if op.type == "Fill" else Kind.ROWS


def broadcast(op: Any, kinds: list[Kind]) -> Kind:
    if kinds[0] in ROWS and op.inputs[0].shape.rank == op.outputs[0].shape.rank:
        return kinds[0]
    constant = kinds[0] is Kind.CONST and op.inputs[0].shape.rank == 0
    return Kind.ONES if constant and kinds[1] is Kind.SIZE else Kind.UNKNOWN


def one_hot(op: Any, kinds: list[Kind]) -> Kind:
    return Kind.ROWS if kinds[0] in ROWS and op.get_attr("axis") != 0 else Kind.UNKNOWN


def where(op: Any, kinds: list[Kind]) -> Kind:
    return Kind.SELECTED if kinds[0] in ROWS else Kind.UNKNOWN
