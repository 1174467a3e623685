"""How lengths of batches, and the numbers of samples made of them, make kinds of tensors.

Each rank's samples are numbered from 0: not as in the whole batch. Where such a number finds its
own sample again (the columns of a batch that are chosen by row) that is the same; else it is a
function of the whole batch.
"""

from __future__ import annotations

from typing import Any

from tensorflow.mpi._src.global_batch.kind import ROWS, Kind

_AS_IT_IS = {"Cast", "ExpandDims", "Identity", "Reshape", "Squeeze", "StopGradient"}
_JOINED = {"ConcatV2", "Pack"}


def length(op: Any, output: Any) -> Kind:
    """A StridedSlice or Unpack of what depends on the number of samples.

    Of a shape the first number does, the others are the same on every rank.
    """
    from tensorflow.python.framework import tensor_util

    if op.inputs[0].op.type != "Shape":
        return Kind.SIZE
    if op.type == "Unpack":
        return Kind.CONST if output.value_index else Kind.SIZE
    begin = tensor_util.constant_value(op.inputs[1])
    starts_later = begin is not None and len(begin) == 1 and begin[0] > 0
    return Kind.CONST if starts_later and not op.get_attr("begin_mask") else Kind.SIZE


def numbers(op: Any, kinds: list[Kind]) -> Kind:
    """A Range whose length depends on the number of samples."""
    from tensorflow.python.framework import tensor_util

    start, step = (tensor_util.constant_value(op.inputs[place]) for place in (0, 2))
    from_zero = kinds[1] is Kind.SIZE and (start, step) == (0, 1)
    return Kind.PLACES if from_zero else Kind.MIXED


def used(op: Any, kinds: list[Kind]) -> Kind:
    """Of an op one of whose inputs has the samples' numbers."""
    if kinds[0] is Kind.PLACES:
        if op.type in _AS_IT_IS or (op.type == "StridedSlice" and _only_new_axes(op)):
            return Kind.PLACES
        # Indices, each of which begins with its sample's number.
        if op.type in _JOINED and set(kinds[1:]) <= {*ROWS, Kind.CONST} and not _is_first(op):
            return Kind.PLACES
    if op.type in ("GatherV2", "GatherNd") and kinds[0] in ROWS and kinds[1] is Kind.PLACES:
        return kinds[0]
    return Kind.MIXED


def _only_new_axes(op: Any) -> bool:
    new, begin, end = (int(op.get_attr(f"{name}_mask")) for name in ("new_axis", "begin", "end"))
    rank = op.inputs[1].shape[0]
    return rank is not None and not new & 1 and (new | (begin & end)) == (1 << rank) - 1


def _is_first(op: Any) -> bool:
    """Whether they are joined along the samples' dimension."""
    from tensorflow.python.framework import tensor_util

    axis = op.get_attr("axis") if op.type == "Pack" else tensor_util.constant_value(op.inputs[-1])
    return axis is None or int(axis) == 0
