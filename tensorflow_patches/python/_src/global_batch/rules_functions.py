"""Rules for functions, branches and loops, and for the lists that loops fill.

The graph of a function is analyzed with the dependences of its inputs. Those of a loop's variables
are joined over iterations, until another iteration changes nothing.
"""

from __future__ import annotations

from typing import Any

from tensorflow.mpi._src.global_batch import sizes
from tensorflow.mpi._src.global_batch.kind import (
    CONST,
    MIXED,
    SIZE,
    UNKNOWN,
    Dependence,
    Kind,
    joined,
)
from tensorflow.mpi._src.global_batch.node import Node

CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
BRANCHES = {"If", "StatelessIf", "Case", "StatelessCase"}
LOOPS = {"While", "StatelessWhile"}


def called(node: Node) -> list[Dependence]:
    inner = node.analysis.inside(node.op, node.op.get_attr("f").name, node.deps)
    return [UNKNOWN] * len(node.op.outputs) if inner is None else inner.results()


def branched(node: Node) -> list[Dependence]:
    condition, inputs = node.deps[0], node.deps[1:]
    branches = [node.analysis.inside(node.op, name, inputs) for name in branches_of(node.op)]
    results = []
    for i in range(len(node.op.outputs)):
        dep = UNKNOWN if None in branches else branches[0].results()[i]
        for branch in branches[1:]:
            dep = UNKNOWN if branch is None else joined(dep, branch.results()[i])
        results.append(_chosen(condition, dep))
    return results


def branches_of(op: Any) -> list[str]:
    """The names of the functions of which an op of BRANCHES calls one."""
    if op.type in ("If", "StatelessIf"):
        return [op.get_attr(name).name for name in ("then_branch", "else_branch")]
    return [branch.name for branch in op.get_attr("branches")]


def _chosen(condition: Dependence, dep: Dependence) -> Dependence:
    """The dependence of a branch's result, `dep`, if `condition` has chosen the branch."""
    if condition.is_const or dep.base is Kind.UNKNOWN:
        return dep
    if condition.has_rows and condition.axis < 0 and condition.is_plain and dep.is_plain:
        return condition.but() if dep.base is Kind.CONST or dep.axis < 0 else MIXED
    return MIXED


def looped(node: Node) -> list[Dependence]:
    """The dependences of a loop's results.

    In a loop over the samples, whose condition compares a counter with their number, the counter is
    the index of the current sample, and only lists hold values of single samples: any other
    variable that changes carries state from sample to sample. Any other condition must be constant.
    """
    condition, body = (node.op.get_attr(name).name for name in ("cond", "body"))
    before = node.deps
    inner = node.analysis.inside(node.op, body, before)
    if inner is None:
        return [UNKNOWN] * len(before)
    # Whether the body returns a loop variable unchanged.
    kept = [_is_same(end, start) for start, end in zip(inner.graph.inputs, inner.graph.outputs)]
    current = [dep if same else dep.but(zero=dep.zero) for dep, same in zip(before, kept)]
    counters = {
        i
        for i, (dep, start, end) in enumerate(zip(before, inner.graph.inputs, inner.graph.outputs))
        if dep.zero and dep.numbers is not None and _is_next(inner, end, start)
    }
    tested = node.analysis.inside(node.op, condition, current)
    by_sample = tested is not None and _ends_with_samples(tested, counters, node)
    for i in counters if by_sample else ():
        current[i] = Dependence(Kind.ROWS, axis=-1, is_index=True)
    # Without a fixed point after this many iterations, what changes is unknown.
    for _ in range(len(before) + 4):
        after = node.analysis.inside(node.op, body, current).results()
        updated = [
            old if same or i in counters else joined(old, new)
            for i, (old, new, same) in enumerate(zip(current, after, kept))
        ]
        if by_sample:
            updated = [
                dep if same or i in counters or output.dtype == "variant" else _carried(dep)
                for i, (dep, output, same) in enumerate(zip(updated, node.op.outputs, kept))
            ]
        if updated == current:
            break
        current = updated
    else:
        return [dep if same else UNKNOWN for dep, same in zip(before, kept)]
    if by_sample:
        return [
            dep if same else _after_samples(dep, i in counters)
            for i, (dep, same) in enumerate(zip(current, kept))
        ]
    predicate = node.analysis.inside(node.op, condition, current)
    predicate = UNKNOWN if predicate is None else predicate.results()[0]
    if predicate.is_const:
        return current
    lost = UNKNOWN if predicate.base is Kind.UNKNOWN else MIXED
    return [dep if same else lost for dep, same in zip(current, kept)]


def _carried(dep: Dependence) -> Dependence:
    return dep if dep.base is Kind.UNKNOWN else MIXED


def _after_samples(dep: Dependence, is_counter: bool) -> Dependence:
    """The results of a loop over samples: lists are known, accumulated values are not."""
    if is_counter:
        return SIZE
    return dep if dep.is_const or dep.axis < 0 else _carried(dep)


def _source(tensor: Any) -> Any:
    while tensor.op.type in ("Identity", "StopGradient"):
        tensor = tensor.op.inputs[0]
    return tensor


def _is_same(one: Any, other: Any) -> bool:
    return _source(one) is _source(other)


def _is_next(inner: Any, tensor: Any, before: Any) -> bool:
    """Whether `tensor` is `before` plus 1."""
    op = _source(tensor).op
    if op.type not in ("Add", "AddV2") or not _is_same(op.inputs[0], before):
        return False
    return sizes.to_ints(inner.dependence(op.inputs[1]).numbers) == [1]


def _ends_with_samples(tested: Any, counters: set[int], node: Node) -> bool:
    """Whether a loop's condition, analyzed as `tested`, holds for each sample of the batch.

    That is, it only compares counters with the batch's size. With static shapes, any loop may count
    to that number by chance, so the loop must also have a list of samples.
    """
    has_list = any(dep.has_rows and dep.axis < 0 for dep in node.deps)
    count = node.size if has_list else sizes.N
    own = [tested.graph.inputs[i] for i in counters]

    def holds(tensor: Any) -> bool:
        op = _source(tensor).op
        if op.type == "LogicalAnd":
            return all(map(holds, op.inputs))
        if op.type != "Less" or not any(_is_same(op.inputs[0], one) for one in own):
            return False
        numbers = tested.dependence(op.inputs[1]).numbers
        return numbers is not None and numbers.size == 1 and bool(numbers.flat[0] == count)

    return holds(tested.graph.outputs[0])


# Rules for lists, by op in rules._LISTS. A list with axis -1 has one element per sample.


def empty_list(node: Node) -> Dependence:
    """TensorListReserve and EmptyTensorList: lists without elements. `any_layout`: whether a loop
    may fill it with one element per sample; a list for at most 1 grows if there are more."""
    count = node.numbers(1) if node.type == "TensorListReserve" else None
    fits = count is not None and (count.flat[0] == node.size or count.flat[0].value in (0, 1))
    return CONST.but(zero=True, any_layout=fits)


def from_tensor(node: Node) -> Dependence:
    dep = node.deps[0]
    if not dep.has_rows or dep.axis > 0:
        return dep.but(axis=max(dep.axis - 1, 0), zero=dep.zero)
    plain = dep.axis == 0 and dep.outer == dep.inner == sizes.ONE and not dep.mask
    return dep.but(axis=-1) if plain else MIXED


def stacked(node: Node) -> Dependence:
    dep = node.deps[0]
    return dep.but(axis=dep.axis + 1) if dep.has_rows else dep.but(zero=dep.zero)


def item(node: Node) -> Dependence:
    dep, index = node.deps[:2]
    if index.is_const:
        own = dep.has_rows and dep.axis < 0
        return MIXED if own else dep.but(zero=dep.zero)  # a single sample of the batch
    own = index.is_current_index and (dep.axis < 0 if dep.has_rows else dep.zero)
    return dep.but() if own else MIXED


def with_item(node: Node) -> Dependence:
    dep, index, new = node.deps[:3]
    if index.is_const:
        return MIXED if new.has_rows and new.axis < 0 else joined(dep, new)
    if not index.is_current_index or not (dep.has_rows or dep.any_layout):
        return MIXED
    if new.is_const:
        new = Dependence(Kind.ROWS, axis=-1, same=True)
    return joined(dep, new) if new.has_rows and new.axis < 0 else MIXED


def pushed(node: Node) -> Dependence:
    dep, new = node.deps[:2]
    return MIXED if new.has_rows and new.axis < 0 else joined(dep, new)


def taken(node: Node) -> Dependence:
    """TensorListPopBack and TensorListResize: the list, and the element taken from it."""
    dep = node.deps[0]
    return MIXED if dep.has_rows and dep.axis < 0 else dep.but(zero=dep.zero)


def length(node: Node) -> Dependence:
    dep = node.deps[0]
    lost = dep.base in (Kind.MIXED, Kind.UNKNOWN)
    return UNKNOWN if lost else SIZE if dep.has_rows and dep.axis < 0 else CONST


def concatenated(node: Node) -> Dependence:
    dep = node.deps[0]
    if not dep.has_rows or dep.axis > 0:
        return dep.but()
    if dep.axis < 0:
        return dep.but(axis=0, mask=node.op.name)  # any number of rows for each sample
    return dep.but(outer=dep.outer * sizes.symbol("", f"{node.op.name} elements"))
