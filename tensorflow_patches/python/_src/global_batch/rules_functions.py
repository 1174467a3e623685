"""What functions, branches and loops make of samples, and the lists that loops fill.

Their graphs are looked at with what is known of their inputs. Of a loop's variables that is what
they are before it and after each turn, until another turn changes nothing.
"""

from __future__ import annotations

from typing import Any

from tensorflow.mpi._src.global_batch import sizes
from tensorflow.mpi._src.global_batch.kind import CONST, MIXED, SIZE, UNKNOWN, Kind, Told, joined
from tensorflow.mpi._src.global_batch.node import Node

CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
BRANCHES = {"If", "StatelessIf", "Case", "StatelessCase"}
LOOPS = {"While", "StatelessWhile"}


def called(node: Node) -> list[Told]:
    """Of all outputs of a call."""
    inner = node.analysis.inside(node.op, node.op.get_attr("f").name, node.told)
    return [UNKNOWN] * len(node.op.outputs) if inner is None else inner.results()


def branched(node: Node) -> list[Told]:
    condition, inputs = node.told[0], node.told[1:]
    if node.type in ("If", "StatelessIf"):
        names = [node.op.get_attr(name).name for name in ("then_branch", "else_branch")]
    else:
        names = [branch.name for branch in node.op.get_attr("branches")]
    branches = [node.analysis.inside(node.op, name, inputs) for name in names]
    results = []
    for place in range(len(node.op.outputs)):
        told = UNKNOWN if None in branches else branches[0].results()[place]
        for branch in branches[1:]:
            told = UNKNOWN if branch is None else joined(told, branch.results()[place])
        results.append(_chosen(condition, told))
    return results


def _chosen(condition: Told, told: Told) -> Told:
    if condition.is_const or told.base is Kind.UNKNOWN:
        return told
    if condition.has_rows and condition.axis < 0 and condition.is_plain and told.is_plain:
        return condition.but() if told.base is Kind.CONST or told.axis < 0 else MIXED
    return MIXED


def looped(node: Node) -> list[Told]:
    condition, body = (node.op.get_attr(name).name for name in ("cond", "body"))
    before = node.told
    inner = node.analysis.inside(node.op, body, before)
    if inner is None:
        return [UNKNOWN] * len(before)
    kept = [_is(end, start) for start, end in zip(inner.graph.inputs, inner.graph.outputs)]
    now = [told if same else told.but(zero=told.zero) for told, same in zip(before, kept)]
    counters = {
        place
        for place, (told, start, end) in enumerate(
            zip(before, inner.graph.inputs, inner.graph.outputs)
        )
        if told.zero and told.numbers is not None and _is_next(inner, end, start)
    }
    asked = node.analysis.inside(node.op, condition, before)
    by_sample = asked is not None and bool(_over_samples(asked, counters, node))
    for place in counters if by_sample else ():
        now[place] = Told(Kind.ROWS, axis=-1, place=True)
    for _ in range(len(before) + 4):
        after = node.analysis.inside(node.op, body, now).results()
        turned = [
            old if same or place in counters else joined(old, new)
            for place, (old, new, same) in enumerate(zip(now, after, kept))
        ]
        if turned == now:
            break
        now = turned
    else:
        return [told if same else UNKNOWN for told, same in zip(before, kept)]
    if by_sample:
        return [
            told if same else _after_samples(told, output, place in counters)
            for place, (told, output, same) in enumerate(zip(now, node.op.outputs, kept))
        ]
    goes_on = node.analysis.inside(node.op, condition, now)
    goes_on = UNKNOWN if goes_on is None else goes_on.results()[0]
    if goes_on.is_const:
        return now
    lost = UNKNOWN if goes_on.base is Kind.UNKNOWN else MIXED
    return [told if same else lost for told, same in zip(now, kept)]


def _after_samples(told: Told, output: Any, is_counter: bool) -> Told:
    """Of a loop that takes one sample after another: lists are fine, what it adds up is not."""
    if is_counter:
        return SIZE
    fine = output.dtype == "variant" and (told.is_const or told.axis < 0)
    return told if fine or told.base is Kind.UNKNOWN else MIXED


def _source(tensor: Any) -> Any:
    while tensor.op.type in ("Identity", "StopGradient"):
        tensor = tensor.op.inputs[0]
    return tensor


def _is(one: Any, other: Any) -> bool:
    return _source(one) is _source(other)


def _is_next(inner: Any, tensor: Any, before: Any) -> bool:
    """Whether it is `before` and 1."""
    op = _source(tensor).op
    if op.type not in ("Add", "AddV2") or not _is(op.inputs[0], before):
        return False
    return sizes.whole(inner.told(op.inputs[1]).numbers) == [1]


def _over_samples(asked: Any, counters: set[int], node: Node) -> list[int]:
    """The counters that go up to the number of samples, by a loop's condition."""
    places = {id(asked.graph.inputs[place]): place for place in counters}
    found = []
    todo = [asked.graph.outputs[0]]
    while todo:
        op = _source(todo.pop()).op
        if op.type == "LogicalAnd":
            todo += op.inputs
        elif op.type == "Less":
            place = places.get(id(_source(op.inputs[0])))
            numbers = asked.told(op.inputs[1]).numbers
            if place is not None and numbers is not None and numbers.size == 1:
                found += [place] if numbers.flat[0] == sizes.N else []
    return found


def listed(node: Node) -> Told:
    """TensorListReserve and EmptyTensorList: of nothing yet."""
    return CONST.but(zero=True)


def from_tensor(node: Node) -> Told:
    told = node.told[0]
    if not told.has_rows or told.axis > 0:
        return told.but(axis=max(told.axis - 1, 0), zero=told.zero)
    plain = told.axis == 0 and told.outer == told.inner == sizes.ONE and not told.some
    return told.but(axis=-1) if plain else MIXED


def stacked(node: Node) -> Told:
    told = node.told[0]
    return told.but(axis=told.axis + 1) if told.has_rows else told.but(zero=told.zero)


def _is_own(index: Told) -> bool:
    """The number of the sample that a loop is at."""
    return index.has_rows and index.place and index.axis < 0 and not index.some


def item(node: Node) -> Told:
    told, index = node.told[:2]
    if index.is_const:
        own = told.has_rows and told.axis < 0
        return MIXED if own else told.but(zero=told.zero)  # one sample of the batch
    own = _is_own(index) and (told.axis < 0 if told.has_rows else told.base is Kind.CONST)
    return told.but() if own else MIXED


def with_item(node: Node) -> Told:
    told, index, new = node.told[:3]
    if index.is_const:
        return MIXED if new.has_rows and new.axis < 0 else joined(told, new)
    if not _is_own(index):
        return MIXED
    if new.is_const:
        new = Told(Kind.ROWS, axis=-1, same=True)
    return joined(told, new) if new.has_rows and new.axis < 0 else MIXED


def pushed(node: Node) -> Told:
    told, new = node.told[:2]
    return MIXED if new.has_rows and new.axis < 0 else joined(told, new)


def taken(node: Node) -> Told:
    """Of a list, the list or an element."""
    told = node.told[0]
    return MIXED if told.has_rows and told.axis < 0 else told.but(zero=told.zero)


def length(node: Node) -> Told:
    told = node.told[0]
    lost = told.base in (Kind.MIXED, Kind.UNKNOWN)
    return UNKNOWN if lost else SIZE if told.has_rows and told.axis < 0 else CONST


def chained(node: Node) -> Told:
    """TensorListConcat: one element after another."""
    told = node.told[0]
    if not told.has_rows or told.axis > 0:
        return told.but()
    name = sizes.symbol("", f"{node.op.name} elements")
    return told.but(outer=told.outer * name) if told.axis == 0 else told.but(axis=0, inner=name)
