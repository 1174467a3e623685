"""Logs of an epoch, an evaluation, or a batch, for all ranks' data.

A metric's result is computed from the sum of its states over ranks. Other values that a step
returns are the ranks' mean, weighted by the samples of the batch, or their sum
(global_batch/results.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.mpi._src.global_batch import metrics, plan, results
from tensorflow.mpi._src.messaging import control_plane
from tensorflow.mpi._src.variables import unwrap

States = list[tuple[Any, str]]
_WEIGHTS = "_tf_mpi_weights"  # attribute of a model: weights of the last batch, by the kind of step


def take_weight(model: Any, kind: str, logs: Any) -> None:
    """After each step: moves the weight that results.note_returned has put into its logs to the
    model, for combine_step_logs."""
    if type(logs) is not dict:
        return
    weight = logs.pop(results.WEIGHT, None)
    model.__dict__.setdefault(_WEIGHTS, {})[kind] = weight


def sum_metrics(model: Any, kind: str, label: str) -> None:
    """Sets the states of metrics to those of one process that has seen all ranks' data.

    They stay so until fit or evaluate resets them. If steps follow before that, as after an
    evaluation in the middle of an epoch, each rank adds to that sum, and the next call counts it
    once.
    """
    _assign(_over_ranks(states_of(model, kind), label))


def sum_states(states: States, label: str) -> None:
    """As sum_metrics, for metrics without a model; `states`: see states_of."""
    _assign(_over_ranks(_distinct(states), label))


def _assign(totals: list[tuple[Any, Any]]) -> None:
    for variable, total in totals:
        _put(variable, total, total)


def _put(variable: Any, value: Any, base: Any) -> None:
    variable.assign(value)
    unwrap.tf_variable(variable).__dict__[metrics.BASE] = base


@contextlib.contextmanager
def _summed_metrics(states: States, values: list[Any], label: str) -> Iterator[None]:
    """Inside, the states of metrics are the sums of `values` over ranks."""
    before = values_of(states)
    _assign(_over_ranks(states, label, values))
    try:
        yield
    finally:
        for (variable, _), (value, base) in zip(states, before, strict=True):
            _put(variable, value, base)


def states_of(model: Any, kind: str) -> States:
    """The metrics' variables, and how to combine those of the ranks: see _over_ranks."""
    found: States = []
    current = plan.current(model, kind)
    is_whole = current is not None and current.is_whole
    whole = {id(variable) for variable in current.whole_states} if current is not None else set()
    for metric in model.metrics:
        for variable in metric.variables:
            is_same = is_whole or id(unwrap.tf_variable(variable)) in whole
            how = str(getattr(variable, "aggregation", "sum")).rpartition(".")[2].lower()
            # A metric's own tf.Variable has no aggregation. Updates add to it, or the metric has
            # the whole batch (global_batch/metrics.py).
            how = "sum" if how == "none" else how
            found.append((variable, "same" if is_same else how))
    return _distinct(found)


def _distinct(states: States) -> States:
    """Each variable of `states` once, if NumPy can represent its value."""
    found: dict[int, tuple[Any, str]] = {}
    for variable, how in states:
        if unwrap.tf_variable(variable).dtype.is_numpy_compatible:
            found.setdefault(id(variable), (variable, how))
    return list(found.values())


def values_of(states: States) -> list[Any]:
    """The values as tensors, and the part of each that is already a sum over ranks.

    Later changes of the variables do not affect them.
    """
    plain = [unwrap.tf_variable(variable) for variable, _ in states]
    # This runs after each batch, and takes a tenth of read_value's time.
    return [
        (
            tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype),
            variable.__dict__.get(metrics.BASE, 0),
        )
        for variable in plain
    ]


def _over_ranks(
    states: States, label: str, taken: list[Any] | None = None
) -> list[tuple[Any, Any]]:
    """Variables, and their values over all ranks, from `taken` (default: the current values_of).

    `how` is "sum" or "mean", by the variable's aggregation, as in tf.distribute. If it is neither,
    or the metric has seen the whole batch on every rank ("same"), rank 0's value is used.
    """
    if not states:
        return []
    taken = taken or values_of(states)
    values = [np.array(tensor) for tensor, _ in taken]
    shapes = [
        f"{variable.name} {value.dtype.name} {list(value.shape)}"
        for (variable, _), value in zip(states, values)
    ]
    everyone = control_plane.gather(label, shapes, [value.astype(np.float64) for value in values])
    _check_same(label, [theirs for theirs, _ in everyone])
    totals = []
    for index, ((variable, how), value) in enumerate(zip(states, values)):
        parts = [arrays[index] for _, arrays in everyone]
        total, base = parts[0], taken[index][1]
        if how == "sum":
            total = sum(parts) - (len(parts) - 1) * np.asarray(base, np.float64)
        elif how == "mean":
            total = sum(parts) / len(parts)
        totals.append((variable, np.asarray(total).astype(value.dtype)))
    return totals


def _check_same(label: str, everyone: list[Any]) -> None:
    for rank, theirs in enumerate(everyone):
        if theirs != everyone[0]:
            differing = ", ".join(sorted(set(theirs) ^ set(everyone[0])))
            what = f"different metrics ({differing})" if differing else "metrics in another order"
            raise ValueError(
                f"{label}: rank {rank} and rank 0 have {what}, so there is no value over all "
                "ranks' data; give all ranks the same metrics"
            )


def combine_step_logs(model: Any, kind: str, logs: Any, label: str) -> Any:
    """The logs of a step on all ranks' samples. Call it when the metrics' states are sums over the
    ranks (sum_metrics). Other values stay this rank's if their names differ by rank.

    Args:
      kind: "train_step" or "test_step".
      logs: this rank's.
    """
    if not isinstance(logs, dict):
        return logs
    sources = results.sources_of(model, kind)
    found: dict[tuple[str, ...], Any] = {}
    own = {}
    for path, value in results.leaves(logs):
        source = sources.get(path)
        if source is not None and source.metric is not None:
            found[path] = _result(source)
        elif _is_number(np.asarray(value).dtype):
            own[path] = np.asarray(value).astype(np.float64)
    weight = model.__dict__.get(_WEIGHTS, {}).get(kind)
    own_weight = np.asarray(1.0 if weight is None else weight, np.float64)
    names = [list(map(str, path)) for path in own]
    everyone = control_plane.gather(label, names, [own_weight, *own.values()])
    if all(theirs == names for theirs, _ in everyone):
        for place, path in enumerate(own):
            source = sources.get(path)
            parts = [(arrays[0], arrays[place + 1]) for _, arrays in everyone]
            found[path] = _combined(parts, source is not None and source.is_sum)
    return _replaced(logs, found)


def _is_number(dtype: Any) -> bool:
    # Types that NumPy does not define, such as bfloat16, are of kind V, but not void.
    return dtype.kind in "fiub" or (dtype.kind == "V" and dtype.type is not np.void)


def _result(source: results.Source) -> Any:
    result = source.metric.result()
    if source.key is not None:
        result = result[source.key]
    return _number(result)


def _combined(parts: list[tuple[Any, Any]], is_sum: bool) -> Any:
    """The sum or weighted mean of the ranks' (weight, value) pairs, without those of weight 0.

    A mean of equal values is that value, bit for bit. If shapes differ: rank 0's value.
    """
    values = [value for weight, value in parts if weight > 0] or [parts[0][1]]
    shape = values[0].shape
    if any(value.shape != shape for value in values):
        return parts[0][1]
    if is_sum:
        total = sum(values)
    elif all(np.array_equal(value, values[0]) for value in values):
        total = values[0]
    else:
        weights = [float(weight) for weight, _ in parts if weight > 0]
        total = sum(w * value for w, value in zip(weights, values)) / sum(weights)
    return total.astype(np.float32) if shape else float(total)


def _replaced(logs: Any, found: dict[tuple[str, ...], Any], path: tuple[str, ...] = ()) -> Any:
    return {
        name: _replaced(value, found, (*path, name))
        if isinstance(value, dict)
        else found.get((*path, name), value)
        for name, value in logs.items()
    }


def exchange_batch_logs(
    model: Any, kind: str, logs: dict[str, Any], states: States, values: list[Any], label: str
) -> dict[str, Any]:
    """The logs of a batch for all ranks' samples; `logs` and `values` are this rank's."""
    current = plan.current(model, kind)
    # A step of the script may return other values by the names of metrics, such as "loss". The
    # sources of values computed from whole batches are not recorded.
    others = any(source.metric is None for source in results.sources_of(model, kind).values())
    with _summed_metrics(states, values, f"{label} metrics"):
        # Not by the method that fit.over_ranks wraps: the states are sums already.
        result = model.get_metrics_result()
        if set(result) == set(logs) and not others and not (current and current.is_whole):
            return {name: _number(result[name]) for name in logs}
        whole: dict[str, Any] = combine_step_logs(model, kind, logs, f"{label} logs")
        return whole


def _number(value: Any) -> Any:
    return float(value) if not getattr(value, "shape", ()) else value
