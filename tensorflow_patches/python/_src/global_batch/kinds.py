"""How a tensor of a graph depends on the samples of a batch: what is told from its ops.

A loss that is a mean over samples, each of which depends on that sample alone, is the mean of the
losses of the batch's parts. Others are not, and a function of the whole batch is needed. The walk
goes from the tensor back to the samples; an op that is not known makes the kind unknown, never
wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tensorflow.mpi._src.global_batch import rules
from tensorflow.mpi._src.global_batch.kind import ADDITIVE, ROWS, Kind

__all__ = [
    "ADDITIVE", "ROWS", "Analysis", "Kind", "Ratio", "addends", "key", "of_function", "origin",
]  # fmt: skip

_MOST = 100_000  # tensors on the way back


def key(tensor: Any) -> tuple[int, str, int]:
    """Of a graph's tensor, which may have several Python objects."""
    return id(tensor.graph), tensor.op.name, tensor.value_index


class Ratio(NamedTuple):
    """How a tensor of kind RATIO is made.

    A part's value times what it was divided by, over what the whole batch is divided by, is its
    share of the whole's value (a sum) or averages to it (a mean).

    numerator: SUM or MEAN. divisor: a scalar tensor, a sum over samples or a mean. of_whole: what
    is really divided by, of the whole's `divisor`, as max(divisor, 1); of a part's own, too.
    """

    numerator: Kind
    divisor: Any
    of_whole: Callable[[Any], Any]


class Analysis:
    """Of tensors of graphs, each of which is looked at once. `known`: what some of them are, by
    key; `rows`: the number of samples, where shapes say so and it comes as a constant."""

    def __init__(self, known: dict[Any, Kind], rows: int | None = None) -> None:
        self._kinds = dict(known)
        self._rows = rows
        self._captures: dict[int, int] = {}  # that are known, by graph

    def note(self, tensor: Any, kind: Kind) -> None:
        self._kinds[key(tensor)] = kind

    def kind(self, tensor: Any) -> Kind:
        graph = tensor.graph
        captures = list(getattr(graph, "captures", ()))
        for outside, inside in captures[self._captures.get(id(graph), 0) :]:
            is_value = hasattr(origin(outside), "_numpy_internal")
            self._kinds.setdefault(key(inside), Kind.CONST if is_value else Kind.UNKNOWN)
        self._captures[id(graph)] = len(captures)
        todo = [tensor]
        while todo:
            last = todo[-1]
            if key(last) in self._kinds:
                todo.pop()
                continue
            missing = [source for source in last.op.inputs if key(source) not in self._kinds]
            if missing:
                todo += missing
                if len(todo) > _MOST:  # a loop of compat.v1 would lead to itself
                    return Kind.UNKNOWN
                continue
            kinds = [self._kinds[key(source)] for source in last.op.inputs]
            if self._rows and last.op.type in rules.QUOTIENTS and _is_size(last.op, self._rows):
                kinds[1] = Kind.SIZE
            self._kinds[key(last)] = rules.of_op(last.op, kinds, last)
            todo.pop()
        return self._kinds[key(tensor)]

    def why(self, tensor: Any) -> Any:
        """The op that makes `tensor` MIXED, LINEAR or UNKNOWN: all that it is made of is none."""
        lost = (Kind.MIXED, Kind.LINEAR, Kind.RATIO, Kind.UNKNOWN)
        if self.kind(tensor) not in lost:
            return None
        while True:
            worse = [source for source in tensor.op.inputs if self.kind(source) in lost]
            if not worse:
                return tensor.op
            tensor = worse[0]

    def ratio(self, tensor: Any) -> Ratio | None:
        """Of a tensor of kind RATIO."""
        return None


def _is_size(quotient: Any, rows: int) -> bool:
    """Whether what is divided by is a constant made of the number of samples, `rows`.

    Of a static shape, x.shape[0] is a number, and tf.size(x) a constant.
    """
    divisor = quotient.inputs[1]
    while divisor.op.type in ("Cast", "Identity"):
        divisor = divisor.op.inputs[0]
    value = _constant(divisor) if divisor.shape.rank == 0 else None
    if value is None:
        return False
    is_of_tf_size = divisor.op.name.rpartition("/")[2].startswith("Size")
    return bool(value == rows or (is_of_tf_size and value % rows == 0))


def _constant(scalar: Any) -> Any:
    """Its value, if that is known; also of one element of a constant, as tf.shape(x)[0] is."""
    from tensorflow.python.framework import tensor_util

    op = scalar.op
    if op.type != "StridedSlice" or op.get_attr("shrink_axis_mask") != 1:
        return tensor_util.constant_value(scalar)
    vector, begin = (tensor_util.constant_value(source) for source in op.inputs[:2])
    return None if vector is None or begin is None else vector[begin[0]]


def addends(tensor: Any) -> list[Any]:
    """The scalars whose sum `tensor`, a scalar of a graph, is; itself if it is no sum."""
    op = tensor.op
    if op.type == "Identity":
        return addends(op.inputs[0])
    if op.type in ("Add", "AddV2", "AddN"):
        terms = list(op.inputs)
    elif op.type == "Sum" and op.inputs[0].op.type == "Pack":
        terms = list(op.inputs[0].op.inputs)
    else:
        return [tensor]
    if any(term.shape.rank != 0 for term in terms):
        return [tensor]
    return [addend for term in terms for addend in addends(term)]


def of_function(function: Callable[..., Any], arguments: Sequence[Any]) -> Kind:
    """What `function` makes of rows like `arguments`, tensors or specs; it is traced for that.

    UNKNOWN if it cannot be traced, or returns no tensor.
    """
    import tensorflow as tf
    from tensorflow.python.framework import func_graph

    graph = func_graph.FuncGraph("tf_mpi_kinds")
    try:
        with graph.as_default():
            rows = [tf.compat.v1.placeholder(a.dtype, [None, *a.shape[1:]]) for a in arguments]
            result = function(*rows)
            if result is None or not tf.is_tensor(result):
                return Kind.UNKNOWN
            known = {key(row): Kind.ROWS for row in rows}
            return Analysis(known).kind(tf.convert_to_tensor(result))
    except Exception:  # of the script's function: it says so where it is really called
        return Kind.UNKNOWN


def origin(tensor: Any) -> Any:
    """What a placeholder of a function stands for, in the functions around it or outside of all."""
    while hasattr(tensor, "op") and not hasattr(tensor, "_numpy_internal"):
        pairs = getattr(tensor.graph, "captures", ())
        outer = next((outside for outside, inside in pairs if inside is tensor), None)
        if outer is None:
            return tensor
        tensor = outer
    return tensor
