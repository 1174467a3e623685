"""Metrics in a loop of the script over a dataset that is divided among the ranks.

Each rank adds the samples of its part to a metric's state. When the loop reaches the end of the
dataset, the states are combined: sums over samples are added up; values that grow once per batch (a
mean, a count of batches) become the ranks' mean. The analysis of the metric's update, in a graph
that never runs, decides which. For a loop in a tf.function this happens in its graph, after the
loop. So a read after the loop, on one rank or on all, returns one process's value.

All ranks reach the end of a divided dataset after the same number of batches. Parts from files
(tf.mpi.data) may differ by one; a loop that trains on them must handle that (docs/readers.md).

A read before the end, or a metric with other state, sees this rank's part only; a line says so. So
does a read by a callback of fit within an epoch.

A loop inside the loop, over data that is not divided (validation every 50 steps), updates metrics
with the same values on all ranks. If their states are in fact equal, they are left as they are.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
import weakref
from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.average import averaging, scope
from tensorflow.mpi._src.data import dataset_shard
from tensorflow.mpi._src.global_batch import batch, metrics, plan, states
from tensorflow.mpi._src.interpose import hooking
from tensorflow.mpi._src.keras import adapters, calls, logs
from tensorflow.mpi._src.messaging import control_plane
from tensorflow.mpi._src.runtime import group, log, threads
from tensorflow.mpi._src.variables import unwrap

# How to combine a state, by whether it grows once per batch (by a mean, for example). If so, it
# grows in one process by the mean of the ranks' amounts; otherwise by their sum.
_HOW = {True: "mean", False: "sum"}
_UNSUMMED = "_tf_mpi_unsummed"  # attribute of a graph: ids of metrics that it updates
_LOOPS = "_tf_mpi_loops"  # attribute of a graph: its _Loops, which keep the metrics alive
_ends = itertools.count(1)
_numbers = itertools.count(1)
# .updating: a metric; .loop: a _Loop; .whole: whether in a function's loop over undivided data;
# .inner: iterators over undivided data that were begun since the last batch of a part.
_local = threading.local()
_open: weakref.WeakSet[Any] = weakref.WeakSet()  # iterators over parts that have not ended


@dataclasses.dataclass
class _Noted:
    """A metric that a loop has updated.

    Attributes:
      number: its index, in the order in which the program updates metrics.
      states: see logs.states_of; None if they cannot be combined.
      in_function: whether the loop is in a tf.function.
      forms: the forms of the arguments of its updates.
      of_whole: whether only loops over undivided data have updated it, inside that over a part.
    """

    number: int
    states: list[tuple[Any, str]] | None
    in_function: bool
    forms: set[Any]
    of_whole: bool

    def digests(self) -> list[int]:
        """Digests of the states that may be the same on all ranks already."""
        states = (self.states or ()) if self.of_whole else ()
        return [control_plane.digest(unwrap.value(variable)) for variable, _ in states]


_noted: weakref.WeakKeyDictionary[Any, _Noted] = weakref.WeakKeyDictionary()
# Whether a loop has updated a metric. _noted does not tell: garbage collection differs by rank.
_has_updated = threading.Event()


class _Loop:
    """A loop over this rank's part, in a function that is being traced.

    It may call functions that were traced before, so it may update any metric known so far.
    """

    def __init__(self) -> None:
        self.graph = _graph()  # encloses the loop
        self.first = len(self.graph.get_operations())
        # By id of a metric: the metric, and its states before the loop by id of the variable.
        self.before: dict[int, tuple[Any, dict[int, Any]]] = {}
        for metric in list(_noted):
            self.note(metric)

    def note(self, metric: Any) -> None:
        if id(metric) not in self.before:
            with self.graph.as_default():
                values = {id(one): one.read_value() for one in metrics.variables_of(metric)}
            self.before[id(metric)] = (metric, values)

    def updated(self) -> list[tuple[Any, dict[int, Any]]]:
        """The metrics that it updates, with their earlier states; valid after tracing."""
        added = states.assigned(self.graph, self.graph.get_operations()[self.first :])
        changed = {id(handle) for handle, _ in added}
        return [
            (metric, before)
            for metric, before in sorted(self.before.values(), key=lambda m: _noted[m[0]].number)
            if any(id(one.handle) in changed for one in metrics.variables_of(metric))
        ]


def _has_own_loop() -> bool:
    """Whether this thread runs a loop of the script, and not a step of Keras's fit."""
    if calls.innermost() is not None or batch.current() is not None:
        return False
    return not scope.is_on_part() and not scope.is_replicated_step()


def updated(original: Any) -> Any:
    """Wraps a metric class's update_state: records metrics that a loop over a part updates."""

    @hooking.without_autograph
    def update_state(self: Any, *args: Any, **kwargs: Any) -> Any:
        function = hooking.with_callers_autograph(original)
        loop = getattr(_local, "loop", None)
        # A subclass calls its base class's update_state on the same metric.
        if not (loop or _open) or not _has_own_loop() or getattr(_local, "updating", None) is self:
            return function(self, *args, **kwargs)
        if self not in _noted:
            metrics.mark_synchronized(self)
        if loop is not None:
            loop.note(self)
        with threads.inside(_local, updating=self):
            found = function(self, *args, **kwargs)
            _note(self, args, kwargs, in_function=loop is not None)
            _noted[self].of_whole &= loop is None and _reads_whole()
        if (graph := _graph()) is not None:
            setattr(graph, _UNSUMMED, {*getattr(graph, _UNSUMMED, ()), id(self)})
        return found

    return update_state


def _note(metric: Any, args: Any, kwargs: Any, in_function: bool) -> None:
    """Records `metric` in _noted; analyzes its update once for each form of the arguments."""
    form = metrics.form(args, kwargs)
    noted = _noted.get(metric)
    if noted is not None and form in noted.forms and noted.in_function == in_function:
        return
    added = metrics.analyze_update(metric, args, kwargs)
    if added is None and adapters.has_summed_states(metric):
        added = [(variable, False) for variable in metric.variables]
    # A variable to which the update adds nothing belongs to a nested metric, or does not change.
    hows = added and [(one, _HOW[once]) for one, once in added if once is not None]
    if noted is None:
        _has_updated.set()
        _noted[metric] = _Noted(next(_numbers), hows, in_function, {form}, of_whole=True)
        return
    noted.forms.add(form)
    same = hows is not None and [how for _, how in hows] == [how for _, how in noted.states or ()]
    if not same or noted.in_function != in_function:
        noted.states = None


def read(original: Any) -> Any:
    """Wraps a metric class's result: says if it covers this rank's part only."""

    @hooking.without_autograph
    def result(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self in _noted and _has_own_loop() and _is_of_part(self):
            _say_of_part(self)
        elif _is_of_epoch_so_far(self):
            log.once(
                f"a callback reads the metric '{self.name}' before the end of the epoch, when it "
                "has only the samples of each rank. The logs that callbacks get cover all ranks",
                key="a metric in an epoch",
            )
        return hooking.with_callers_autograph(original)(self, *args, **kwargs)

    return result


def _is_of_epoch_so_far(metric: Any) -> bool:
    """Whether a callback of fit or evaluate reads a metric whose states are not summed yet."""
    call = calls.innermost()
    if call is None or not tf.executing_eagerly() or scope.is_in_step():
        return False
    if all(metric is not one for one in call.model.metrics):
        return False
    own = set(map(id, metric.variables))
    return any(
        id(variable) in own and how != "same" and not metrics.holds_sums(variable)
        for variable, how in logs.states_of(call.model, plan.STEPS[call.kind])
    )


def _graph() -> Any:
    """The graph to which this thread adds operations; None in eager code."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def _is_of_part(metric: Any) -> bool:
    if _noted[metric].of_whole:
        return False
    graph = _graph()
    if graph is not None:
        return id(metric) in getattr(graph, _UNSUMMED, ())
    return not all(metrics.holds_sums(variable) for variable in metric.variables)


def _say_of_part(metric: Any) -> None:
    why = "is read before the loop reaches the end of its data"
    if _noted[metric].states is None:
        why = (
            "has state other than sums over samples, or is updated both in and outside tf.functions"
        )
    log.once(
        f"the metric '{metric.name}' {why}: its value covers only this rank's part of the data, "
        "and may differ between ranks. tf.mpi.allreduce(metric.result()) on all ranks returns "
        "their mean",
        key=f"a metric {why}",
    )


def begun(original: Any) -> Any:
    """Wraps OwnedIterator._create_iterator: a loop over a part may begin."""

    def create(self: Any, dataset: Any) -> None:
        original(self, dataset)
        if dataset_shard.is_part(dataset):
            _open.add(self)
        else:
            _inner().add(self)

    return create


def _inner() -> weakref.WeakSet[Any]:
    found: weakref.WeakSet[Any] = vars(_local).setdefault("inner", weakref.WeakSet())
    return found


def _reads_whole() -> bool:
    """Whether this thread is in a loop over undivided data, inside one over a part."""
    return bool(_inner() or getattr(_local, "whole", False))


def at_end(original: Any) -> Any:
    """Wraps OwnedIterator.__next__: in eager code the end of a part is collective once a loop has
    updated a metric, which all ranks must do, or none."""

    def following(self: Any) -> Any:
        try:
            found = original(self)
            if self in _open:
                _inner().clear()
            return found
        except StopIteration:
            _inner().discard(self)
            if self in _open:
                _open.discard(self)
                if _has_updated.is_set() and calls.innermost() is None:
                    label = f"metrics at the end of a dataset, {next(_ends)}"
                    logs.sum_states(_states_on_all_ranks(f"{label}: which"), label)
            raise

    return following


def _states_on_all_ranks(label: str) -> list[tuple[Any, str]]:
    """States of metrics, in program order, without those that a rank has garbage-collected."""
    mine = {
        noted.number: noted
        for noted in list(_noted.values())
        if noted.states is not None and not noted.in_function
    }
    digests = [[number, mine[number].digests()] for number in sorted(mine)]
    everyone = [dict(theirs) for theirs in control_plane.headers(label, digests)]
    found = []
    for number in sorted(set(mine).intersection(*everyone)):
        same = all(theirs[number] == everyone[0][number] for theirs in everyone)
        for variable, how in mine[number].states or ():
            found.append((variable, "same" if same and mine[number].of_whole else how))
    return found


def in_function(original: Any) -> Any:
    """Wraps AutoGraph's implementation of a loop over a dataset in a function."""

    @hooking.without_autograph
    def for_stmt(dataset: Any, *args: Any, **kwargs: Any) -> Any:
        divided = dataset_shard.splits_loops() or dataset_shard.is_part(dataset)
        if not divided or not _has_own_loop():
            with threads.inside(_local, whole=not divided):
                return original(dataset, *args, **kwargs)
        loop = _Loop()
        with threads.inside(_local, loop=loop):
            found = original(dataset, *args, **kwargs)
        setattr(loop.graph, _LOOPS, [*getattr(loop.graph, _LOOPS, ()), loop])
        done: set[int] = set()
        for metric, before in loop.updated():
            noted = _noted[metric]
            if not noted.in_function:
                noted.states = None
            elif noted.states is not None:
                _sum_in_graph(noted, before, done)
        return found

    return for_stmt


def _sum_in_graph(noted: _Noted, before: dict[int, Any], done: set[int]) -> None:
    """Replaces what the loop has added to states with what it has added on all ranks.

    Args:
      done: ids of variables that are done already, because metrics may be nested; updated here.
    """
    added = []
    for variable, how in noted.states or ():
        own = unwrap.tf_variable(variable)
        if id(own) in before and id(own) not in done:
            done.add(id(own))
            added.append((own, how, tf.cast(before[id(own)], tf.float64)))
    means = averaging.average(
        [tf.cast(own.read_value(), tf.float64) - base for own, _, base in added],
        [f"state {place} of metric {noted.number}" for place in range(len(added))],
        "metrics after a loop",
    )
    for (own, how, base), mean in zip(added, means, strict=True):
        total = base + (mean if how == "mean" else mean * group.size)
        metrics.put_sum(
            own, tf.cast(total if own.dtype.is_floating else tf.round(total), own.dtype)
        )
