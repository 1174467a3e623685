"""The values that a train_step or test_step returns: results of metrics, and others.

A metric's result over all ranks is computed from its summed state. Quotients of sums, and values of
several terms, are computed for the whole batch in the step. Of other values the logs show the mean
over the ranks, weighted by samples; of sums over samples, the sum over the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.mpi._src.global_batch.batch import Part
from tensorflow.mpi._src.global_batch.kinds import Kind
from tensorflow.mpi._src.global_batch.sites import Findings
from tensorflow.mpi._src.variables import unwrap

WEIGHT = "_tf_mpi_weight"  # a key of the logs, until keras/logs.py removes it
_RETURNED = "_tf_mpi_returned"  # attribute of a model: what sources_of() returns, by kind of step


class Source(NamedTuple):
    """The source of a returned value.

    Attributes:
      metric: the metric whose result the value is; None otherwise.
      key: the value's key, if that result is a dict.
      is_sum: whether the value is a sum over samples.
    """

    metric: Any
    key: str | None
    is_sum: bool


def record_returned(model: Any, part: Part, findings: Findings, logs: Any) -> None:
    """Records the kinds of the values that an analyzed step returns besides metrics' results."""
    _note_last_results(model, part)
    for path, value in leaves(logs if isinstance(logs, dict) else {}):
        if id(value) not in part.results:
            if _is_same_on_ranks(model, value):
                continue
            terms, kind = part.terms(value), part.kind(value)
            if part.is_count(value):
                kind = Kind.SUM
            elif terms is None and kind in (Kind.RATIO, Kind.LINEAR):
                kind = Kind.MIXED
            findings.values[path] = Kind.LINEAR if terms is not None and len(terms) > 1 else kind


def _is_same_on_ranks(model: Any, value: Any) -> bool:
    """Whether it is a number of Python, or a variable other than a metric's."""
    if isinstance(value, (int, float, np.number)):
        return True
    own = unwrap.tf_variable(value)
    of_metrics = (unwrap.tf_variable(v) for metric in model.metrics for v in metric.variables)
    return isinstance(own, tf.Variable) and all(own is not one for one in of_metrics)


def note_returned(model: Any, kind: str, part: Part, logs: Any) -> Any:
    """Records the sources of the values that a step returns, when it is traced or run.

    Returns the logs; with this rank's weight, unless all values are results of metrics.

    Args:
      kind: "train_step" or "test_step".
    """
    if type(logs) is not dict:
        return logs
    _note_last_results(model, part)
    logs = _with_whole_values(part, logs)
    sources = {path: _source(part, path, value) for path, value in leaves(logs)}
    model.__dict__.setdefault(_RETURNED, {})[kind] = sources
    if part.weight is None or all(source.metric is not None for source in sources.values()):
        return logs
    return {**logs, WEIGHT: part.weight}


def _with_whole_values(part: Part, logs: Any, path: tuple[str, ...] = ()) -> Any:
    """Replaces quotients of sums, and values of several terms, by those of the whole batch."""
    found = {}
    for name, value in logs.items():
        here = (*path, name)
        if isinstance(value, dict):
            value = _with_whole_values(part, value, here)
        elif part.values.get(here) in (Kind.RATIO, Kind.LINEAR) and part.terms(value) is not None:
            value = part.mean(value, f"value {name}")
        found[name] = value
    return found


def sources_of(model: Any, kind: str) -> dict[tuple[str, ...], Source]:
    """The sources of the returned values of the last step, by path."""
    found: dict[tuple[str, ...], Source] = model.__dict__.get(_RETURNED, {}).get(kind, {})
    return found


def leaves(logs: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in logs.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name), value


def _source(part: Part, path: tuple[str, ...], value: Any) -> Source:
    known = part.results.get(id(value))
    if known is not None:
        return Source(known[1], known[2], False)
    return Source(None, None, part.values.get(path) is Kind.SUM)


def note_result(part: Part, metric: Any, result: Any) -> None:
    """Records that metric.result() has returned `result`."""
    if isinstance(result, dict):
        for key, value in result.items():
            part.results[id(value)] = (value, metric, key)
    else:
        part.results.setdefault(id(result), (result, metric, None))


def _note_last_results(model: Any, part: Part) -> None:
    """For tf_keras, whose metrics return a copy of their class's result, and keep that copy."""
    for metric in model.metrics:
        result = getattr(metric, "_call_result", None)
        if result is not None:
            note_result(part, metric, result)
