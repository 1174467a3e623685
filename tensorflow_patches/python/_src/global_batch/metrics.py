"""A metric's state on this rank's part of a batch.

The states of most metrics are sums over samples: each rank adds its own, and they are summed over
ranks when they are read. What a batch adds once (a mean of it, a count of batches) a rank adds by
its share. A metric that does anything else with its state (a maximum, a batch-wise F1) is given the
whole batch, and its state is the same on every rank. Which of these holds is told by what its
update assigns, when the step is looked at (plan.py). Of Keras 3 and of tf_keras, whose Metric has
the same form.
"""

from __future__ import annotations

import functools
from typing import Any

from tensorflow.mpi._src.global_batch import batch, results, states
from tensorflow.mpi._src.global_batch.kinds import Kind
from tensorflow.mpi._src.global_batch.sites import How, Leaf, Look, Site, Why
from tensorflow.mpi._src.interpose import hooking
from tensorflow.mpi._src.variables import unwrap

BASE = "_tf_mpi_base"  # on a metric's variable: the sum over ranks that it holds since it was reset


def updated(original: Any) -> Any:
    """Wraps a metric class's update_state."""

    @hooking.not_converted
    @functools.wraps(original)
    def update_state(self: Any, *args: Any, **kwargs: Any) -> Any:
        part = batch.current()
        function = hooking.as_here(original)
        # A class calls that which it is made of, of the same metric.
        if part is None or part.is_whole or part.is_updating(self):
            return function(self, *args, **kwargs)
        with part.updating(self):
            if part.look is not None:
                return _looked_at(part, part.look, self, function, args, kwargs)
            site = part.planned.next("metric")
            if site is None or site.how is How.WHOLE:
                return _of_whole(part, site, self, function, args, kwargs)
            return _of_part(part, site, self, function, args, kwargs)

    return update_state


def _looked_at(part: Any, look: Look, metric: Any, function: Any, args: Any, kwargs: Any) -> Any:
    """Decides; adds to the graph that is looked at."""
    import tensorflow as tf

    site, mark = look.enter("metric")
    graph = tf.compat.v1.get_default_graph()
    first = len(graph.get_operations())
    found = function(metric, *args, **kwargs)
    operations = graph.get_operations()[first:]
    new = [op for op in operations if op.name not in look.judged]
    look.judged.update(op.name for op in new if op.type in states.ASSIGNS)
    variables = _variables(metric)
    own: dict[int, bool | None] = {id(variable.handle): None for variable in variables}
    why = next(iter(look.whys[mark.whys :]), None)
    for handle, added in states.assigned(graph, new):
        if id(handle) not in own:
            continue
        kind = None if added is None else part.kind(added)
        once = kind in (Kind.MEAN, Kind.CONST) and added.dtype.is_floating
        both = own[id(handle)] not in (None, once)
        if both or not (once or kind is Kind.SUM or part.is_count(added)):
            why = Why(f"the metric '{metric.name}'", part.why(added))
        own[id(handle)] = once
    if why is None:
        site.once = [bool(own[id(variable.handle)]) for variable in variables]
        site.given = _given(args, kwargs)
        return found
    look.restart(mark)
    leaves = [part.leaf(one) for one in tf.nest.flatten((args, kwargs))]
    if None in leaves:
        look.whys.append(why)
    site.how, site.leaves = How.WHOLE, [leaf for leaf in leaves if leaf is not None]
    look.gathered.append(why)
    look.whole_states += variables
    return found


def _of_part(part: Any, site: Site, metric: Any, function: Any, args: Any, kwargs: Any) -> Any:
    """What a batch adds once, each rank adds by its share: the sum over ranks is one process's."""
    import tensorflow as tf

    # A weight that is there only where shapes are static is the number of samples: it counts.
    counts_samples = site.given != _given(args, kwargs)
    variables = [] if counts_samples else _variables(metric)
    once = [one for one, is_once in zip(variables, site.once) if is_once]
    before = [tf.identity(variable) for variable in once]
    found = function(metric, *args, **kwargs)
    for variable, value in zip(once, before, strict=True):
        by = tf.math.divide_no_nan(1.0, tf.cast(part.to_sum(tf.float32), tf.float32))
        variable.assign(value + (variable - value) * tf.cast(by, variable.dtype))
    return found


def _given(args: Any, kwargs: Any) -> list[str]:
    """Which arguments are given, and not None."""
    named = {**{str(place): one for place, one in enumerate(args)}, **kwargs}
    return sorted(name for name, one in named.items() if one is not None)


def _of_whole(
    part: Any, site: Site | None, metric: Any, function: Any, args: Any, kwargs: Any
) -> Any:
    import tensorflow as tf

    given = tf.nest.flatten((args, kwargs))
    leaves: list[Leaf | None] = list(site.leaves) if site is not None else []
    leaves += [None] * (len(given) - len(leaves))
    if site is None:
        part.whole_states += _variables(metric)
    whole = [part.whole(one, leaf, metric.name) for one, leaf in zip(given, leaves)]
    args, kwargs = tf.nest.pack_sequence_as((args, kwargs), whole)
    with batch.of_whole(part):
        return function(metric, *args, **kwargs)


def _variables(metric: Any) -> list[Any]:
    """Its tf.Variables, those of metrics that it is made of among them."""
    import tensorflow as tf

    found = [unwrap.tf_variable(variable) for variable in metric.variables]
    return [variable for variable in found if isinstance(variable, tf.Variable)]


def returned(original: Any) -> Any:
    """Wraps a metric class's result."""

    @hooking.not_converted
    @functools.wraps(original)
    def result(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = hooking.as_here(original)(self, *args, **kwargs)
        part = batch.current()
        if part is not None:
            results.note_result(part, self, found)
        return found

    return result


def reset(original: Any) -> Any:
    """Wraps a metric class's reset_state."""

    @hooking.not_converted
    @functools.wraps(original)
    def reset_state(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = hooking.as_here(original)(self, *args, **kwargs)
        for variable in map(unwrap.tf_variable, getattr(self, "variables", ())):
            base = variable.__dict__.get(BASE)
            # A metric of the script's own may go on from epoch to epoch.
            if base is not None and not _still_holds(variable, base):
                del variable.__dict__[BASE]
        return found

    return reset_state


def _still_holds(variable: Any, value: Any) -> bool:
    import numpy as np
    import tensorflow as tf

    if not tf.executing_eagerly():
        return False
    held = variable.numpy()
    return bool(np.array_equal(held, np.asarray(value).astype(held.dtype)))
