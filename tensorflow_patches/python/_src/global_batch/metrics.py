"""The state of metrics on this rank's part of a batch.

The state of most metrics is a sum over samples: each rank adds its samples, and the states are
summed over ranks when they are read. Where an update adds once per batch (the batch's mean, a count
of batches), each rank adds its share. A metric that does anything else with its state (a maximum, a
batch-wise F1) gets the whole batch, and its state is the same on every rank. The analysis of the
step (plan.py) decides by the values that the update assigns. For Keras 3 and tf_keras, whose Metric
has the same form.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.mpi._src.global_batch import batch, python_state, results, states
from tensorflow.mpi._src.global_batch.kinds import Kind
from tensorflow.mpi._src.global_batch.sites import Findings, How, Leaf, Site, Why
from tensorflow.mpi._src.interpose import hooking
from tensorflow.mpi._src.runtime import log
from tensorflow.mpi._src.variables import unwrap

# Attributes of a metric's variable: the part of its value that is the same on all ranks, such as an
# earlier sum over them; and a tf.Variable with this sum, if it was computed in a graph.
BASE = "_tf_mpi_base"
_SUMMED = "_tf_mpi_summed"
_PYTHON = ("EagerPyFunc", "PyFunc", "PyFuncStateless")


def updated(original: Any) -> Any:
    """Wraps a metric class's update_state."""

    @hooking.without_autograph
    def update_state(self: Any, *args: Any, **kwargs: Any) -> Any:
        python_state.note_call(self)
        part = batch.current()
        function = hooking.with_callers_autograph(original)
        # A subclass calls its base class's update_state on the same metric.
        if part is None or part.is_suspended or part.is_updating(self):
            return function(self, *args, **kwargs)
        with part.updating(self):
            if part.findings is not None:
                return _analyze(part, part.findings, self, function, args, kwargs)
            site = part.planned.next("metric")
            if site is None or site.how is How.WHOLE:
                return _of_whole(part, site, self, function, args, kwargs)
            return _of_part(part, site, self, function, args, kwargs)

    return update_state


def _analyze(
    part: Any, findings: Findings, metric: Any, function: Any, args: Any, kwargs: Any
) -> Any:
    """Decides how the metric is updated; updates it in the analyzed graph."""
    site, mark = findings.enter("metric")
    graph = tf.compat.v1.get_default_graph()
    first = len(graph.get_operations())
    found = function(metric, *args, **kwargs)
    operations = graph.get_operations()[first:]
    new = [op for op in operations if op.name not in findings.judged]
    findings.judged.update(op.name for op in new if op.type in states.ASSIGNS)
    variables = variables_of(metric)
    once_by_handle: dict[int, bool | None] = {id(variable.handle): None for variable in variables}
    why = next(iter(findings.whys[mark.whys :]), None)
    if len(findings.sites) == mark.sites and any(op.type in _PYTHON for op in operations):
        why = Why(f"the metric '{metric.name}'")  # Python may keep what it gets
    for handle, added in states.assigned(graph, new):
        kind = None if added is None else part.kind(added)
        if id(handle) not in once_by_handle:  # not in metric.variables, so ranks do not sum it
            if kind is not Kind.CONST:
                why = Why(f"the metric '{metric.name}'", part.why(added))
            continue
        if added is not None and states.reads(graph, added, set(once_by_handle)):
            # A rank's state is only its share of what one process would read.
            why = Why(f"the metric '{metric.name}'", part.why(added))
        once = kind in (Kind.MEAN, Kind.CONST) and added.dtype.is_floating
        adds_both_ways = once_by_handle[id(handle)] not in (None, once)
        if adds_both_ways or not (once or kind is Kind.SUM or part.is_count(added)):
            why = Why(f"the metric '{metric.name}'", part.why(added))
        once_by_handle[id(handle)] = once
    if why is None:
        site.once = [once_by_handle[id(variable.handle)] for variable in variables]
        site.given = _given(args, kwargs)
        return found
    findings.restart(mark)
    leaves = [part.leaf(one) for one in tf.nest.flatten((args, kwargs))]
    if None in leaves:
        findings.whys.append(why)
    site.how, site.leaves = How.WHOLE, [leaf for leaf in leaves if leaf is not None]
    findings.gathered.append(why)
    findings.whole_states += variables
    return found


def _of_part(part: Any, site: Site, metric: Any, function: Any, args: Any, kwargs: Any) -> Any:
    """Updates with this rank's part; variables that grow once per batch grow by its share."""
    # Keras may pass the static batch size as a weight. In the analyzed step, where the size is
    # unknown, it is None. With this weight the update counts samples, and needs no share.
    counts_samples = site.given != _given(args, kwargs)
    variables = [] if counts_samples else variables_of(metric)
    once = [one for one, is_once in zip(variables, site.once) if is_once]
    before = [tf.identity(variable) for variable in once]
    found = function(metric, *args, **kwargs)
    for variable, value in zip(once, before, strict=True):
        share = tf.math.divide_no_nan(1.0, part.to_sum(tf.float32))
        variable.assign(value + (variable - value) * tf.cast(share, variable.dtype))
    return found


def form(args: Any, kwargs: Any) -> tuple[Any, ...]:
    """Describes arguments: which of them are arrays, and which may have samples."""
    return (*sorted(kwargs), *(_rank(one) for one in tf.nest.flatten(_arrays(args, kwargs))))


def _arrays(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments with lists of numbers made into arrays."""
    return tuple(map(_array, args)), {name: _array(one) for name, one in kwargs.items()}


def _array(one: Any) -> Any:
    if not isinstance(one, (list, tuple)) or not all(
        isinstance(each, (int, float)) for each in one
    ):
        return one
    return np.asarray(one)


def _rank(one: Any) -> Any:
    """The rank of an array, "any" if unknown; None for other objects."""
    if not isinstance(one, (tf.Tensor, np.ndarray)):
        return None
    return one.ndim if isinstance(one, np.ndarray) or one.shape.rank is not None else "any"


def analyze_update(metric: Any, args: Any, kwargs: Any) -> list[tuple[Any, bool | None]] | None:
    """How an update with these arguments, which has run before, changes the metric.

    A first dimension of an argument is taken as that of samples.

    Returns:
      The metric's variables, each with its element of Site.once; None if the update does more than
      add to the state, or cannot be analyzed.
    """
    arrays = _arrays(args, kwargs)
    given = tf.nest.flatten(arrays)
    specs = {
        i: tf.TensorSpec([None, *one.shape[1:]] if _rank(one) else one.shape, one.dtype)
        for i, one in enumerate(given)
        if _rank(one) is not None
    }
    attributes = dict(vars(metric))
    lists = [(one, list(one)) for one in attributes.values() if isinstance(one, list)]
    findings = Findings(eagerly=False)

    def trial(*tensors: Any) -> None:
        inside = list(given)
        for i, tensor in zip(specs, tensors, strict=True):
            inside[i] = tensor
        args, kwargs = tf.nest.pack_sequence_as(arrays, inside)
        with batch.step_on(batch.AnalyzedBatch(tensors), findings=findings):
            metric.update_state(*args, **kwargs)

    try:
        with tf.init_scope():
            tf.function(trial).get_concrete_function(*specs.values())
    except Exception as error:  # the script's own, for instance if it can only run eagerly
        log.debug(f"the metric '{metric.name}' could not be analyzed: {error}")
        return None
    finally:
        vars(metric).update(attributes)
        for one, before in lists:
            if list(map(id, one)) != list(map(id, before)):
                one[:] = before
    site = findings.sites[0] if findings.sites else None
    if site is None or findings.whys or site.how is not How.PART:
        return None
    is_once = dict(zip(map(id, variables_of(metric)), site.once, strict=True))
    return [(one, is_once.get(id(unwrap.tf_variable(one)))) for one in metric.variables]


def _given(args: Any, kwargs: Any) -> list[str]:
    """The names of the arguments that are not None."""
    named = {**{str(i): one for i, one in enumerate(args)}, **kwargs}
    return sorted(name for name, one in named.items() if one is not None)


def _of_whole(
    part: Any, site: Site | None, metric: Any, function: Any, args: Any, kwargs: Any
) -> Any:
    given = tf.nest.flatten((args, kwargs))
    leaves: list[Leaf | None] = list(site.leaves) if site is not None else []
    leaves += [None] * (len(given) - len(leaves))
    if site is None:
        known = {id(variable) for variable in part.whole_states}  # the plan's list, which grows
        part.whole_states += [one for one in variables_of(metric) if id(one) not in known]
    whole = [part.whole(one, leaf, metric.name) for one, leaf in zip(given, leaves)]
    args, kwargs = tf.nest.pack_sequence_as((args, kwargs), whole)
    with batch.outside_part(part):
        return function(metric, *args, **kwargs)


def variables_of(metric: Any) -> list[Any]:
    """The tf.Variables of `metric`, including those of metrics that it contains."""
    found = [unwrap.tf_variable(variable) for variable in metric.variables]
    return [variable for variable in found if isinstance(variable, tf.Variable)]


def returned(original: Any) -> Any:
    """Wraps a metric class's result."""

    @hooking.without_autograph
    def result(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = hooking.with_callers_autograph(original)(self, *args, **kwargs)
        part = batch.current()
        if part is not None:
            results.note_result(part, self, found)
            if part.findings is not None:
                _note_own_samples(part, self, found)
        return found

    return result


def _note_own_samples(part: Any, metric: Any, result: Any) -> None:
    """Notes that a result covers only this rank's samples, unless the metric gets whole batches."""
    same_on_ranks = {id(variable) for variable in part.findings.whole_states}
    if {id(variable) for variable in variables_of(metric)} <= same_on_ranks:
        return
    for one in tf.nest.flatten(result):
        if isinstance(one, tf.Tensor):
            part.note(one, Kind.MIXED)


def reset(original: Any) -> Any:
    """Wraps a metric class's reset_state."""

    @hooking.without_autograph
    def reset_state(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = hooking.with_callers_autograph(original)(self, *args, **kwargs)
        for variable in map(unwrap.tf_variable, getattr(self, "variables", ())):
            base = variable.__dict__.get(BASE)
            # A metric of the script may keep its state from epoch to epoch.
            if base is not None and not _still_holds(variable, base):
                del variable.__dict__[BASE]
        return found

    return reset_state


def mark_synchronized(metric: Any) -> None:
    """Declares that the current state of `metric` is the same on all ranks; not in compat.v1."""
    with tf.init_scope():
        for variable in variables_of(metric) if tf.executing_eagerly() else ():
            if variable.is_initialized() and not holds_sums(variable):
                variable.__dict__[BASE] = variable.numpy()


def put_sum(variable: Any, total: Any) -> None:
    """In a graph: assigns `total`, a sum over all ranks, to `variable`."""
    if _SUMMED not in variable.__dict__:
        with tf.init_scope():
            variable.__dict__[_SUMMED] = tf.Variable(tf.zeros_like(variable), trainable=False)
    variable.assign(total)
    variable.__dict__[_SUMMED].assign(total)


def holds_sums(variable: Any) -> bool:
    """Whether a metric's variable, in eager code, contains a sum over all ranks, or no sample."""
    own = unwrap.tf_variable(variable)
    known = [own.__dict__.get(BASE, 0)]
    known += [own.__dict__[_SUMMED].numpy()] if _SUMMED in own.__dict__ else []
    held = own.numpy()
    return any(np.all(held == np.asarray(one).astype(held.dtype)) for one in known)


def _still_holds(variable: Any, value: Any) -> bool:
    if not tf.executing_eagerly():
        return False
    held = variable.numpy()
    return bool(np.array_equal(held, np.asarray(value).astype(held.dtype)))
