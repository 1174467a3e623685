"""Rules for products and for ops of whole layers."""

from __future__ import annotations

from collections.abc import Sequence

from tensorflow.mpi._src.global_batch.kind import (
    CONST,
    MIXED,
    SUM,
    UNKNOWN,
    Dependence,
    Kind,
    common_layout,
)
from tensorflow.mpi._src.global_batch.node import Node
from tensorflow.mpi._src.global_batch.rules_layout import Rule


def contracted(node: Node, terms: Sequence[str], result: str) -> Dependence:
    """A sum of products of inputs, as Einsum computes it: `terms` has the labels of each input's
    dimensions, `result` those of the output; it sums over the others."""
    deps = node.deps
    if not all(one.base in (Kind.CONST, Kind.ROWS, Kind.SUM) for one in deps):
        return MIXED
    if any(one.is_index or one.mask for one in deps):
        return MIXED
    if sum(one.over is not None for one in deps) > 1:
        return MIXED
    power = sum(one.power or 0 for one in deps)
    over = next((one.over for one in deps if one.over), None)
    sums = [one for one in deps if one.base is Kind.SUM]
    rows = [(one, term) for one, term in zip(deps, terms) if one.has_rows]
    if not rows:
        if len(sums) > 1:
            return MIXED
        return (sums[0] if sums else CONST).but(power=power, over=over)
    if all(one.axis < 0 for one, _ in rows) and not sums:
        return rows[0][0].but(power=power, over=over, same=False)
    names = {term[one.axis] if one.axis >= 0 else "of one" for one, term in rows}
    if sums or len(names) > 1:
        return MIXED  # pairs of samples
    layout = common_layout(*(one for one, _ in rows))
    if layout is None:
        return MIXED
    (name,) = names
    for i, (one, term) in enumerate(zip(deps, terms)):
        if not one.has_rows and name in term:
            size = node.inputs[i].shape[term.index(name)]
            if size != 1 and not (node.rows and size):
                return UNKNOWN
    if name in result:
        return layout.but(axis=result.index(name), power=power, over=over, same=False)
    same = all(one.same for one, _ in rows)
    how = CONST.but(power=power + 1) if same else SUM.but(power=power)
    return how.but(over=over)


_LABELS = "abcdefghijklmnopqrstuvw"  # of dimensions; x, y and z are those of the matrices


def matmul(node: Node) -> Dependence:
    names = ("transpose_a", "transpose_b") if node.type == "MatMul" else ("adj_x", "adj_y")
    ranks = [tensor.shape.rank for tensor in node.inputs]
    if None in ranks:
        return UNKNOWN
    left, right = ("yx" if node.op.get_attr(name) else "xy" for name in names)
    right = right.translate(str.maketrans("xy", "yz"))
    # The leading dimensions of batches of matrices are broadcast from their ends.
    front = _LABELS[: max(ranks) - 2]
    lead = [front[len(front) - (rank - 2) :] for rank in ranks]
    return contracted(node, [lead[0] + left, lead[1] + right], front + "xz")


def einsum(node: Node) -> Dependence:
    equation = node.op.get_attr("equation").decode().replace(" ", "")
    inputs, _, result = equation.partition("->")
    terms = inputs.split(",")
    ranks = [tensor.shape.rank for tensor in node.inputs]
    if None in ranks:
        return UNKNOWN
    # An ellipsis stands for dimensions that are broadcast from their ends.
    free = [chr(ord("A") + i) for i in range(26) if chr(ord("A") + i) not in equation]
    most = max(rank - len(term.replace("...", "")) for rank, term in zip(ranks, terms))
    dots = "".join(free[:most])
    for i, (rank, term) in enumerate(zip(ranks, terms)):
        count = rank - len(term.replace("...", ""))
        terms[i] = term.replace("...", dots[len(dots) - count :] if count else "")
    if any(len(set(term)) < len(term) for term in terms):
        return UNKNOWN  # a diagonal
    return contracted(node, terms, result.replace("...", dots))


def convolution(samples: int) -> Rule:
    """An op that is linear in its input `samples` and in input 1, the kernel. Samples are the first
    dimension of the output and of all inputs except the kernel."""

    def rule(node: Node) -> Dependence:
        others = [p for p in range(len(node.deps)) if p not in (1, samples)]
        if not all(node.deps[p].base in (Kind.CONST, Kind.SIZE) for p in others):
            return MIXED
        if node.deps[1].has_rows or (node.deps[samples].has_rows and node.deps[samples].axis):
            return UNKNOWN
        return _contracted_inputs(node, [samples, 1], ["N", "k"], "N")

    return rule


def kernel_gradient(node: Node) -> Dependence:
    """The gradient of a kernel: a sum over samples of products of input 0 and input 2, the upstream
    gradient."""
    if any(node.deps[i].has_rows and node.deps[i].axis for i in (0, 2)):
        return UNKNOWN
    return _contracted_inputs(node, [0, 2], ["N", "N"], "k")


def _contracted_inputs(node: Node, which: list[int], terms: list[str], result: str) -> Dependence:
    some = node.with_deps([node.deps[i].but() for i in which], which)
    return contracted(some, terms, result)


def layer(*followed: int) -> Rule:
    """A function of each sample: samples are the first dimension of the inputs `followed` (default:
    the first input); the other inputs must be constant, or shapes."""

    def rule(node: Node) -> Dependence:
        which = [i for i in followed or (0,) if i < len(node.deps)]
        others_fit = [
            one.is_const or (one.base is Kind.SIZE and tensor.dtype.is_integer)
            for i, (one, tensor) in enumerate(zip(node.deps, node.inputs))
            if i not in which
        ]
        chosen = [node.deps[i] for i in which]
        if not all(others_fit):
            return MIXED
        rows = [one for one in chosen if one.has_rows]
        if not rows or not all(one.is_plain for one in chosen):
            return MIXED
        if any(one.axis for one in rows) or len(rows) < len(chosen):
            return UNKNOWN
        layout = common_layout(*rows)
        return MIXED if layout is None else layout.but(same=False)

    return rule


def inner(core: int) -> Rule:
    """Ops on the last `core` dimensions of each input, separately for each index in the others."""

    def rule(node: Node) -> Dependence:
        if not all(one.is_plain for one in node.deps):
            return MIXED
        layout: Dependence | None = None
        front = 0
        for i, dep in enumerate(node.deps):
            if not dep.has_rows:
                continue
            rank = node.rank(i)
            if rank is None or node.output.shape.rank is None or dep.axis < 0:
                return UNKNOWN
            place = dep.axis - (rank - core)
            if place >= 0 or (layout is not None and place != front):
                return MIXED
            front = place
            layout = dep if layout is None else common_layout(layout, dep)
            if layout is None:
                return MIXED
        return UNKNOWN if layout is None else layout.but(same=False)

    return rule


def along_last_dim(node: Node) -> Dependence:
    """Softmax and top k, which combine elements along the last dimension."""
    dep, rank = node.deps[0], node.rank(0)
    if not dep.has_rows or not dep.is_plain or not all(one.is_const for one in node.deps[1:]):
        return MIXED
    return UNKNOWN if rank is None else MIXED if dep.axis == rank - 1 else dep.but()


def arg_max(node: Node) -> Dependence:
    dep, rank = node.deps[0], node.rank(0)
    axis = node.axis(1, rank)
    if not dep.has_rows or not dep.is_plain:
        return MIXED
    if axis is None:
        return UNKNOWN
    return MIXED if axis == dep.axis else dep.but(axis=dep.axis - (axis < dep.axis))


def batch_norm(node: Node) -> Dependence:
    """FusedBatchNorm, by the moments of the batch or by given ones.

    Independent for each sample if samples are the channels, as in tf_keras's LayerNormalization.
    """
    dep = node.deps[0]
    if node.op.get_attr("is_training"):
        channels = node.op.get_attr("data_format").index(b"C")
        if not dep.has_rows or dep.axis != channels or not dep.is_plain:
            return MIXED
        layout = dep.but(axis=0, same=False)
        if any(one.has_rows and common_layout(layout, one) is None for one in node.deps[1:3]):
            return MIXED
        if not all(one.is_plain for one in node.deps[1:]):
            return MIXED
        return dep.but(same=False) if node.output.value_index == 0 else layout
    found = layer()(node)
    return CONST if node.output.value_index and found.has_rows else found


def cudnn_rnn(node: Node) -> Dependence:
    """CudnnRNN: samples are the second dimension of sequences and states."""
    deps = [one for one in node.deps if one.has_rows]
    if any(one.axis > 1 or not one.is_plain for one in deps):
        return UNKNOWN
    layout = node.deps[0]
    return layout.but(same=False) if layout.has_rows and layout.axis == 1 else UNKNOWN
