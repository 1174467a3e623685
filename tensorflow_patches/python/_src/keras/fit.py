"""Keras's fit, evaluate and predict: what all ranks must know or decide alike, besides gradients.

- Before the first step, evaluation or prediction, and after a restore, rank 0's weights, slots and
  counters are every rank's.
- Metrics and losses are those of all ranks' data, so that History, EarlyStopping, ReduceLROnPlateau
  and ModelCheckpoint see the same values everywhere.
- If a callback stops the training on one rank, it stops on all.
- Batch-norm statistics are averaged before they are saved or evaluated.
- A step that trains without averaging anything is an error.

Of Keras 3, and of tf_keras (tf_keras/training.py). The functions here run on the
thread that calls fit, at points that all ranks pass.
"""

from __future__ import annotations

import itertools
import threading
from types import ModuleType
from typing import Any

from tensorflow.mpi._src.keras import calls
from tensorflow.mpi._src.runtime import c_api, control_plane, hooking, hooks
from tensorflow.mpi._src.variables import initial_broadcast, large_variables

_fits = itertools.count(1)
_evaluations = itertools.count(1)
_epoch_ends = itertools.count(1)
_predictions = itertools.count(1)
_inside = threading.local()

# Callbacks of Keras's own that never stop a training between two batches.
_NEVER_STOP_A_BATCH = {
    "BackupAndRestore", "CSVLogger", "EarlyStopping", "History", "LearningRateScheduler",
    "ModelCheckpoint", "ProgbarLogger", "ReduceLROnPlateau", "RemoteMonitor", "SwapEMAWeights",
    "TensorBoard",
}  # fmt: skip
_BATCH_HOOKS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")


def install() -> None:
    """Called once, when TensorFlow's libraries are loaded."""
    hooking.when_imported("keras.src.callbacks.callback_list", hook_callbacks)
    hooking.when_imported("keras.src.trainers.trainer", _hook_metrics)


def hook_callbacks(module: ModuleType) -> None:
    """Of a module that has the CallbackList."""
    hooking.after(module, "CallbackList.on_train_begin", _fit_begins)
    hooking.after(module, "CallbackList.on_train_batch_end", _batch_ends)
    hooking.after(module, "CallbackList.on_epoch_end", _epoch_ends_for)
    hooking.before(module, "CallbackList.on_test_begin", _evaluation_begins)
    hooking.before(module, "CallbackList.on_predict_begin", _prediction_begins)
    hooking.before(module, "CallbackList.on_test_end", _use_ends)
    hooking.before(module, "CallbackList.on_predict_end", _use_ends)


def _hook_metrics(module: ModuleType) -> None:
    hooking.wrap_in_subclasses(module, "Trainer", {"_get_metrics_result_or_logs": over_ranks})


class _Fit:
    """One call of fit on this rank; its CallbackList holds it."""

    def __init__(self) -> None:
        self.name = f"fit {next(_fits)}"
        self.batches = itertools.count(1)
        self.agree_on_each_batch = False
        self.gradients = c_api.stats()["gradients"]
        self.weights: list[int] | None = None  # digests at the start; None: not built yet


def _fit_begins(callbacks: Any) -> None:
    """After every callback's on_train_begin, so after BackupAndRestore."""
    if calls.innermost() is None:
        return  # the script drives its callbacks itself
    hooks.used_keras = True
    fit = _Fit()
    callbacks.__dict__["_tf_mpi_fit"] = fit
    model = callbacks.model
    fit.agree_on_each_batch = any(
        _meet(fit.name, model, any(map(_may_stop_a_batch, callbacks.callbacks)))
    )
    _draw_differently(model)
    fit.weights = _trainable_digests(model)


def _meet(label: str, model: Any, flag: bool = False) -> list[bool]:
    """All ranks begin the same: synchronizes what is new or restored; every rank's `flag`."""
    everyone = control_plane.headers(label, [initial_broadcast.changed(), flag])
    initial_broadcast.before_model_runs(
        f"start of {label}", _variables(model), any(changed for changed, _ in everyone)
    )
    return [theirs for _, theirs in everyone]


def _may_stop_a_batch(callback: Any) -> bool:
    """Whether it has a function of its own for batches, which could set model.stop_training."""
    kind = type(callback)
    if kind.__module__.partition(".")[0] in ("keras", "tf_keras"):
        return kind.__name__ not in _NEVER_STOP_A_BATCH
    return any(
        getattr(kind, hook, None) is not getattr(base, hook, None)
        for base in kind.__mro__
        if base.__name__ == "Callback" and base.__module__.startswith(("keras.", "tf_keras."))
        for hook in _BATCH_HOOKS
    )


def _variables(model: Any) -> list[Any]:
    """Weights, slots and counters that exist by now; a metric's state is each rank's own."""
    found = [*model.weights] if model.built or getattr(model, "inputs", None) else []
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        found += initial_broadcast.optimizer_variables(optimizer)
    return [_tf_variable(variable) for variable in found]


def _tf_variable(variable: Any) -> Any:
    """The tf.Variable in a Keras 3 variable; tf_keras's are tf.Variables."""
    return getattr(variable, "value", variable) if hasattr(variable, "path") else variable


def _draw_differently(model: Any) -> None:
    """Sets the model's random generators (dropout, augmentation) a part of their sequence apart.

    With one seed on all ranks every rank would draw the same mask for other samples.
    """
    try:
        variables = getattr(model, "non_trainable_variables", ())
    except ValueError:  # of tf_keras, a Sequential that its first step will build
        return
    for variable in variables:
        if not initial_broadcast.is_random_state(getattr(variable, "path", "")):
            continue
        if hasattr(variable, "_tf_mpi_drawing"):
            continue
        variable._tf_mpi_drawing = True
        state = _numpy(variable)
        if state.shape == (2,):
            state[1] += hooks.rank << 20
            variable.assign(state)


def _numpy(variable: Any) -> Any:
    import numpy as np

    return np.array(_tf_variable(variable).numpy())


def _digest(variable: Any) -> int:
    """Of its value on this rank; of a large one without a copy of it."""
    large = large_variables.eager_variable(_tf_variable(variable))
    return control_plane.digest(_numpy(variable)) if large is None else large.digest()


def _trainable_digests(model: Any) -> list[int] | None:
    if not model.built:
        return None
    return [_digest(variable) for variable in model.trainable_weights]


def _batch_ends(callbacks: Any) -> None:
    fit: _Fit | None = callbacks.__dict__.get("_tf_mpi_fit")
    if fit is None:
        return
    if (call := calls.innermost()) is not None:
        call.batches += 1
    if next(fit.batches) == 1:
        _check_averaged(fit, callbacks.model)
    if fit.agree_on_each_batch:
        _agree_on_stop(f"{fit.name} batch", callbacks.model)


def _agree_on_stop(label: str, model: Any) -> None:
    if control_plane.anywhere(f"{label}: stop?", bool(model.stop_training)):
        model.stop_training = True


def _check_averaged(fit: _Fit, model: Any) -> None:
    """After the first batch: an optimizer that none of the hooks reaches is not trained in silence.

    A script that calls collectives of its own knows what it does.
    """
    if hooks.asked or c_api.stats()["gradients"] > fit.gradients or not model.trainable_weights:
        return
    if fit.weights is not None and _trainable_digests(model) == fit.weights:
        return  # nothing was trained
    optimizer = type(getattr(model, "optimizer", None)).__name__
    raise NotImplementedError(
        f"fit() of model '{model.name}' with optimizer {optimizer} changed the weights in a step "
        f"that averaged no gradient over the {hooks.size} ranks, so they would train "
        f"{hooks.size} models. Update the weights through the optimizer's apply or "
        "apply_gradients, or average the gradients with tf.mpi.allreduce(gradient), or run with "
        "TF_MPI_ENABLE=0"
    )


def _epoch_ends_for(callbacks: Any) -> None:
    """After every callback's on_epoch_end."""
    fit: _Fit | None = callbacks.__dict__.get("_tf_mpi_fit")
    if fit is not None:
        _agree_on_stop(f"{fit.name} epoch", callbacks.model)


def _evaluation_begins(callbacks: Any) -> None:
    if calls.innermost() is not None:
        _use_begins(f"evaluation {next(_evaluations)}", callbacks.model)


def _prediction_begins(callbacks: Any) -> None:
    if calls.innermost() is not None:
        _use_begins(f"prediction {next(_predictions)}", callbacks.model)


def _use_begins(label: str, model: Any) -> None:
    hooks.used_keras = True
    call = calls.innermost()
    assert call is not None
    call.label, call.unbuilt = label, not model.built
    _meet(label, model)
    _synchronize_states(model, f"start of {label}")


def _use_ends(callbacks: Any) -> None:
    """At the end of evaluate and predict: what its first step has built was not synchronized."""
    call, model = calls.innermost(), callbacks.model
    if call is None or not call.unbuilt or not model.built or call.model is not model:
        return
    call.unbuilt = False
    everyone = control_plane.headers(f"end of {call.label}", _trainable_digests(model))
    if any(theirs != everyone[0] for theirs in everyone):
        raise RuntimeError(
            f"{call.kind}() of model '{model.name}', which was not built yet, has built another "
            "one on each rank: their weights were drawn without a common seed. Build it before "
            "(model.build(input_shape), or keras.Input as its first layer)"
        )


def over_ranks(original: Any) -> Any:
    """For hooking.wrap, of the method that makes logs of metrics.

    It runs once at the end of an epoch of fit, and of an evaluation, on all ranks.
    """

    def over_ranks(self: Any, logs: Any) -> Any:
        if getattr(_inside, "on", False):
            return original(self, logs)
        _inside.on = True
        try:
            number = next(_epoch_ends)
            _sum_metrics(self, f"metrics {number}")
            result = original(self, logs)
            if result is logs:
                result = _average_logs(logs, f"logs {number}")
            _synchronize_states(self, f"end of epoch {number}")
            return result
        finally:
            _inside.on = False

    return over_ranks


def _metric_variables(model: Any) -> list[Any]:
    found: dict[int, Any] = {}
    for metric in model.metrics:
        for variable in metric.variables:
            found[id(variable)] = variable
    return [v for v in found.values() if _tf_variable(v).dtype.is_numpy_compatible]


def _sum_metrics(model: Any, label: str) -> None:
    """A metric's state becomes what one process has that has seen all ranks' data.

    State is summed, as in tf.distribute, unless its variable says aggregation="mean", or neither:
    then rank 0's is every rank's. The state stays so until the next reset, which fit and evaluate
    do before they go on.
    """
    import numpy as np

    variables = _metric_variables(model)
    if not variables:
        return
    values = [_numpy(variable) for variable in variables]
    shapes = [
        f"{variable.name} {value.dtype.name} {list(value.shape)}"
        for variable, value in zip(variables, values)
    ]
    everyone = control_plane.gather(label, shapes, [value.astype(np.float64) for value in values])
    for rank, (theirs, _) in enumerate(everyone):
        if theirs != everyone[0][0]:
            differing = sorted(set(theirs) ^ set(everyone[0][0]))
            raise ValueError(
                f"{label}: rank {rank} and rank 0 have different metrics ({', '.join(differing)}), "
                "so there is no value over all ranks' data; give all ranks the same metrics"
            )
    for index, (variable, value) in enumerate(zip(variables, values)):
        parts = [arrays[index] for _, arrays in everyone]
        how = str(getattr(variable, "aggregation", "sum")).rpartition(".")[2].lower()
        total = {"sum": sum(parts), "mean": sum(parts) / len(parts)}.get(how, parts[0])
        variable.assign(np.asarray(total).astype(value.dtype))


def _average_logs(logs: Any, label: str) -> Any:
    """Values of a custom train_step that are no metrics: the mean of the ranks' last ones."""
    import numpy as np

    if not isinstance(logs, dict):
        return logs
    numbers = {}
    for name in sorted(logs, key=str):
        value = np.asarray(logs[name])
        if value.dtype.kind in "fiub":
            numbers[name] = value.astype(np.float64)
    everyone = control_plane.gather(label, list(map(str, numbers)), list(numbers.values()))
    if any(theirs != everyone[0][0] for theirs, _ in everyone):
        return logs
    result = dict(logs)
    for index, (name, own) in enumerate(numbers.items()):
        mean = sum(arrays[index] for _, arrays in everyone) / len(everyone)
        result[name] = mean.astype(np.float32) if own.shape else float(mean)
    return result


def _synchronize_states(model: Any, label: str) -> None:
    """State that steps change on each rank, as batch-norm's moving averages, becomes the mean.

    Only what differs between ranks is touched. Weights that differ, which averaging would have kept
    equal, are rank 0's again; more than rounding is an error.
    """
    import numpy as np

    if not model.built and not getattr(model, "inputs", None):
        return
    trained = list(model.trainable_weights)
    states = [*trained, *(v for v in model.non_trainable_weights if _is_float(v))]
    everyone = control_plane.headers(label, [_digest(variable) for variable in states])
    if any(len(theirs) != len(everyone[0]) for theirs in everyone):
        return  # not one model: a rank has built more of it
    differing = [i for i in range(len(states)) if len({theirs[i] for theirs in everyone}) > 1]
    if not differing:
        return
    gathered = control_plane.gather(f"{label}: state", None, [_numpy(states[i]) for i in differing])
    for place, i in enumerate(differing):
        parts = [arrays[place] for _, arrays in gathered]
        if i < len(trained):
            _check_rounding(states[i], parts, label)
            states[i].assign(parts[0])
        else:
            mean = np.mean([part.astype(np.float64) for part in parts], axis=0)
            states[i].assign(mean.astype(parts[0].dtype))


def _is_float(variable: Any) -> bool:
    return bool(_tf_variable(variable).dtype.is_floating)


def _check_rounding(variable: Any, parts: list[Any], label: str) -> None:
    import numpy as np

    first = parts[0].astype(np.float64)
    for rank, part in enumerate(parts[1:], start=1):
        distance = np.abs(part.astype(np.float64) - first) / np.maximum(1, np.abs(first))
        if not np.nanmax(distance, initial=0) <= 1e-3:
            raise RuntimeError(
                f"{label}: weight '{variable.name}' of rank {rank} is {np.nanmax(distance):.2g} "
                "away from rank 0's: something changed it on one rank only, past the optimizer. "
                "Make the change on all ranks, or follow it with tf.mpi.broadcast_variables"
            )
