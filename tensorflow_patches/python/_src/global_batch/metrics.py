"""A metric's state on this rank's part of a batch.

Keras's own metrics have states that are sums over samples: each rank adds its own, and they are
summed over ranks when they are read. A metric of the script's own is given the whole batch, and its
state is the same on every rank, whatever it does with it (a maximum, a batch-wise F1). Of Keras 3
and of tf_keras, whose Metric has the same form.
"""

from __future__ import annotations

import functools
from typing import Any

from tensorflow.mpi._src.global_batch import batch, losses, results, states
from tensorflow.mpi._src.global_batch.kinds import Kind
from tensorflow.mpi._src.interpose import hooking
from tensorflow.mpi._src.variables import unwrap

BASE = "_tf_mpi_base"  # on a metric's variable: the sum over ranks that it holds since it was reset

_OF_MEANS = "_tf_mpi_of_means"  # on a sum: what it adds up are means over samples
# Metrics of one number; what they are given is one value for a batch as often as one for a sample.
_MEANS = {"Mean.update_state", "Reduce.update_state"}
_SUMS = {"Sum.update_state"}


def updated(original: Any) -> Any:
    """Wraps a metric class's update_state."""
    own = not losses.is_keras(getattr(original, "__module__", ""))
    name = getattr(original, "__qualname__", "")

    @hooking.not_converted
    @functools.wraps(original)
    def update_state(self: Any, *args: Any, **kwargs: Any) -> Any:
        part = batch.current()
        if (
            part is None
            or part.is_whole
            or type(self).__name__ in ("CompileMetrics", "MetricsList")
        ):
            return hooking.as_here(original)(self, *args, **kwargs)
        if own or _is_function_of_batch(self, name, args, kwargs):
            states.mark_whole(self)
            args, kwargs = _of_whole(part, self.name, (args, kwargs))
            with batch.of_whole(part):
                return hooking.as_here(original)(self, *args, **kwargs)
        if name in _MEANS | _SUMS:
            args, kwargs = _one_value(part, self, *args, **kwargs)
        return hooking.as_here(original)(self, *args, **kwargs)

    return update_state


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


def _of_whole(part: Any, name: str, arguments: Any) -> Any:
    import tensorflow as tf

    def whole(value: Any) -> Any:
        return part.mean(part.whole(value), name)

    return tf.nest.map_structure(whole, arguments)


def _is_function_of_batch(metric: Any, name: str, args: Any, kwargs: Any) -> bool:
    """Whether it is Keras's wrapper around a function of several samples at once."""
    function = getattr(metric, "_fn", None)
    if not name.endswith("MetricWrapper.update_state") or function is None:
        return False
    settings = getattr(metric, "_fn_kwargs", {})
    if losses.by_sample(function, settings) or hasattr(function, "reduction"):
        return False  # a loss object sees to itself
    values = [*args, *(kwargs[key] for key in ("y_true", "y_pred") if key in kwargs)][:2]
    if len(values) < 2 or not all(hasattr(value, "shape") for value in values):
        return False
    part = batch.current()
    assert part is not None
    if not all(map(part.is_batched, values)):
        return False
    call = functools.partial(function, **settings)
    return losses.of_function(metric, call, *values) not in (Kind.ROWS, Kind.MEAN)


def _one_value(part: Any, metric: Any, values: Any, sample_weight: Any = None) -> Any:
    """Of one value for the batch, this rank's part, for a mean or a sum of such values."""
    import tensorflow as tf

    if not tf.is_tensor(values) or part.is_batched(values):
        return (values,), {"sample_weight": sample_weight}
    if part.is_trial:
        part.told.add(part.kind(values))
    if any(base.__name__ == "Sum" for base in type(metric).__mro__):
        if part.kind(values) in (Kind.MEAN, Kind.CONST):
            metric.__dict__[_OF_MEANS] = True  # eager code, which cannot tell, learns it in a trial
        if metric.__dict__.get(_OF_MEANS, False):
            values = values / part.share(values.dtype)
        return (values,), {"sample_weight": sample_weight}
    values = part.scaled(values)
    if sample_weight is None and part.weight is not None:
        count = values.shape[0] if values.shape.rank else None
        sample_weight = part.weight if count is None else tf.fill([count], part.weight)
    return (values,), {"sample_weight": sample_weight}
