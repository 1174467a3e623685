"""What a train_step or test_step returns: which values are metrics' results, and which its own.

A metric's result over all ranks is made of its summed state; what else a step returns is the mean
of the ranks' values, weighted by their samples, or the sum of values that are sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from tensorflow.mpi._src.global_batch import states
from tensorflow.mpi._src.global_batch.batch import Part
from tensorflow.mpi._src.global_batch.kinds import Kind

WEIGHT = "_tf_mpi_weight"  # among the logs, until keras/logs.py takes it out
_RETURNED = "_tf_mpi_returned"


class Source(NamedTuple):
    """Of one value. metric: None for a value of the step's own. key: in a result that is a dict."""

    metric: Any
    key: str | None
    is_sum: bool


def noted(model: Any, kind: str, part: Part, logs: Any) -> Any:
    """`logs`, of a step that is traced or run; with this rank's weight if that will be needed.

    Args:
      kind: "train_step" or "test_step".
    """
    if type(logs) is not dict:
        return logs
    _note_last_results(model, part)
    sources = {path: _source(part, value) for path, value in leaves(logs)}
    model.__dict__.setdefault(_RETURNED, {})[kind] = sources
    if part.weight is None or all(source.metric is not None for source in sources.values()):
        return logs
    return {**logs, WEIGHT: part.weight}


def sources_of(model: Any, kind: str) -> dict[tuple[str, ...], Source]:
    """By path, of the step that was traced or run last."""
    found: dict[tuple[str, ...], Source] = model.__dict__.get(_RETURNED, {}).get(kind, {})
    return found


def leaves(logs: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in logs.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name), value


def _source(part: Part, value: Any) -> Source:
    known = part.results.get(id(value))
    if known is not None:
        return Source(known[1], known[2], False)
    return Source(None, None, part.kind(value) is Kind.SUM)


def note_result(part: Part, metric: Any, result: Any) -> None:
    """`result` is what metric.result() has returned."""
    if isinstance(result, dict):
        for key, value in result.items():
            part.results[id(value)] = (value, metric, key)
    else:
        part.results.setdefault(id(result), (result, metric, None))


def _note_last_results(model: Any, part: Part) -> None:
    """tf_keras's metrics return a copy of what their class's method returns, and keep it."""
    for metric in states.metrics_of(model):
        result = getattr(metric, "_call_result", None)
        if result is not None:
            note_result(part, metric, result)
