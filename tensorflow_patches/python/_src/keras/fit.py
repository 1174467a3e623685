"""Keras's fit, evaluate and predict: what ranks must share besides gradients.

- Before the first step, evaluation or prediction, and after a restore, all ranks get rank 0's
  weights, slots and counters.
- Metrics and losses are those of all ranks' data, so History, EarlyStopping, ReduceLROnPlateau and
  ModelCheckpoint see the same values everywhere.
- If a callback stops training on one rank, training stops on all.
- Batch-norm statistics that steps do not synchronize are averaged before they are saved or
  evaluated.
- It is an error if the first step of a fit trains without averaging anything.

The functions serve Keras 3 and tf_keras. They run on the thread that calls fit, at points that all
ranks pass.
"""

from __future__ import annotations

import itertools
import signal
import threading
from typing import Any

import numpy as np
from tensorflow.mpi._src.average import own_updates
from tensorflow.mpi._src.global_batch import batch, states
from tensorflow.mpi._src.keras import adapters, batch_logs, calls, generators
from tensorflow.mpi._src.keras import logs as logs_of_ranks
from tensorflow.mpi._src.messaging import collectives, control_plane
from tensorflow.mpi._src.presence import presence
from tensorflow.mpi._src.runtime import c_api, group, hooks, threads
from tensorflow.mpi._src.variables import initial_broadcast, large_variables, unwrap

_fits = itertools.count(1)
_evaluations = itertools.count(1)
_epoch_ends = itertools.count(1)
_predictions = itertools.count(1)
_inside = threading.local()  # .on: whether this thread is in a method that over_ranks wraps
_TEST_BATCHES = "_tf_mpi_test_batches"  # attribute of a CallbackList: Batches, or None

_READ_HOOKS = {
    "train_step": ("on_batch_end", "on_train_batch_end"),
    "test_step": ("on_test_batch_end",),
}


class _Fit:
    """One call of fit on this rank; referenced by its CallbackList."""

    def __init__(self) -> None:
        self.name = f"fit {next(_fits)}"
        self.batches = itertools.count(1)
        self.agree_on_each_batch = False
        self.epoch_begins = True  # whether the next batch is the first of an epoch
        self.read: batch_logs.Batches | None = None  # batches whose logs a callback may read
        self.gradients = _averaged_gradients()
        self.weights: list[int] | None = None  # digests at the start; None: not built yet


def fit_begins(callbacks: Any) -> None:
    """Called once, after the on_train_begin of all callbacks, including BackupAndRestore's."""
    if calls.innermost() is None:
        return  # the script drives its callbacks itself
    own_updates.mark_checked()
    fit = _Fit()
    callbacks.__dict__["_tf_mpi_fit"] = fit
    model = callbacks.model
    batch_logs.forget_stop(model)
    may_stop = any(map(adapters.has_batch_hook, callbacks.callbacks)) or _handles_a_signal()
    everyone = _meet(fit.name, model, [may_stop, _reads(callbacks, "train_step")])
    fit.agree_on_each_batch = any(stops for stops, _ in everyone)
    if any(reads for _, reads in everyone):
        fit.read = batch_logs.Batches(model, "train_step", f"{fit.name} batch")
    generators.jump_by_rank(model)
    fit.weights = _trainable_digests(model)


def _handles_a_signal() -> bool:
    """Whether the script handles a signal: its handler may set model.stop_training."""
    handlers = map(signal.getsignal, signal.valid_signals())
    return any(callable(one) and one is not signal.default_int_handler for one in handlers)


def _meet(label: str, model: Any, flags: Any = None) -> list[Any]:
    """Synchronizes variables that are new or restored; returns all ranks' `flags`. Collective."""
    batch_logs.before_call()
    everyone = control_plane.headers(label, [initial_broadcast.changed(), flags])
    initial_broadcast.before_model_runs(
        f"start of {label}", _variables(model), any(changed for changed, _ in everyone)
    )
    return [theirs for _, theirs in everyone]


def _reads(callbacks: Any, step: str) -> bool:
    """Whether a callback may read the logs of a batch."""
    hooks_of_step = _READ_HOOKS[step]
    return any(adapters.may_read_logs(one, hooks_of_step) for one in callbacks.callbacks)


def with_whole_logs(step: str) -> Any:
    """Wraps a CallbackList's on_train_batch_end or on_test_batch_end."""

    def make(original: Any) -> Any:
        def batch_end(self: Any, batch: Any, logs: Any = None) -> Any:
            if calls.innermost() is not None:
                presence.stepped(int(batch) + 1)
            # A CallbackList used by the script may have no model; tf_keras's then lacks the
            # attribute.
            model = getattr(self, "model", None)
            if model is None:
                return original(self, batch, logs)
            logs_of_ranks.take_weight(model, step, logs)
            batches = _batches_of(self, step)
            if batches is None or type(logs) is not dict:
                return original(self, batch, logs)
            hook = "_async_train" if step == "train_step" else "_async_test"
            try:
                # No variable here holds what begin() returns: if it is alive at the end, a callback
                # has kept it.
                result = original(self, batch, batches.begin(logs, getattr(self, hook, False)))
            except BaseException:
                batches.leave()
                raise
            batch_logs.stop_together(model, batches.end())
            return result

        return batch_end

    return make


def _batches_of(callbacks: Any, step: str) -> batch_logs.Batches | None:
    if step == "test_step":
        return callbacks.__dict__.get(_TEST_BATCHES)
    fit: _Fit | None = callbacks.__dict__.get("_tf_mpi_fit")
    return None if fit is None else fit.read


def _variables(model: Any) -> list[Any]:
    """Weights, slots and counters that exist so far; not metrics, whose state differs by rank."""
    found = [*model.weights] if model.built or getattr(model, "inputs", None) else []
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        found += initial_broadcast.optimizer_variables(optimizer)
    return [unwrap.tf_variable(variable) for variable in found]


def _digest(variable: Any) -> int:
    return large_variables.digest(unwrap.tf_variable(variable).handle)


def _trainable_digests(model: Any) -> list[int] | None:
    if not model.built:
        return None
    return [_digest(variable) for variable in model.trainable_weights]


def batch_ends(callbacks: Any) -> None:
    """Called after the on_train_batch_end of all callbacks."""
    fit: _Fit | None = callbacks.__dict__.get("_tf_mpi_fit")
    if fit is None:
        return
    if next(fit.batches) == 1:
        _check_averaged(fit, callbacks.model)
    # A stop in on_epoch_begin takes effect after the first batch. If logs are read, with_whole_logs
    # has agreed.
    if (fit.agree_on_each_batch or fit.epoch_begins) and fit.read is None:
        _agree_on_stop(f"{fit.name} batch", callbacks.model)
    fit.epoch_begins = False


def _agree_on_stop(label: str, model: Any) -> None:
    stops = control_plane.any_rank(f"{label}: stop?", batch_logs.is_stopping(model))
    batch_logs.stop_together(model, stops)


def _averaged_gradients() -> int:
    """How many gradients have been averaged, not counting that of batch.send_distinct_gradient."""
    return c_api.stats()["gradients"] - batch.distinct_gradient_sent


def _check_averaged(fit: _Fit, model: Any) -> None:
    """After the first batch: raises if that changed weights, or built them, but averaged nothing.

    Not for a script that may average by itself.
    """
    has_moments = any(hasattr(layer, "_tf_mpi_synchronized") for layer in states.batch_norms(model))
    if (
        not hooks.active
        or collectives.combined_by_script
        or (_averaged_gradients() > fit.gradients and not has_moments)
        or not model.trainable_weights
    ):
        return
    weights = _trainable_digests(model)
    if has_moments:  # the count may come from batch-norm moments, so compare weights instead
        everyone = control_plane.headers(f"{fit.name}: weights after a step", weights)
        if all(theirs == weights for theirs in everyone):
            return
    if fit.weights is not None and weights == fit.weights:
        return  # nothing was trained
    optimizer = type(getattr(model, "optimizer", None)).__name__
    raise NotImplementedError(
        f"fit() of model '{model.name}' with optimizer {optimizer} changed the weights in a step "
        f"that averaged no gradient over the {group.size} ranks, so they would train "
        f"{group.size} models. Update the weights through the optimizer's apply or "
        "apply_gradients, or average the gradients with tf.mpi.allreduce(gradient), or run with "
        "TF_MPI_ENABLE=0"
    )


def epoch_ends(callbacks: Any) -> None:
    """Called once per epoch, after the on_epoch_end of all callbacks."""
    fit: _Fit | None = callbacks.__dict__.get("_tf_mpi_fit")
    if fit is not None:
        _agree_on_stop(f"{fit.name} epoch", callbacks.model)
        fit.epoch_begins = True


def evaluation_begins(callbacks: Any) -> None:
    if calls.innermost() is not None:
        reads = _reads(callbacks, "test_step")
        label = f"evaluation {next(_evaluations)}"
        everyone = _call_begins(label, callbacks.model, reads)
        callbacks.__dict__[_TEST_BATCHES] = (
            batch_logs.Batches(callbacks.model, "test_step", f"{label} batch")
            if any(everyone)
            else None
        )


def prediction_begins(callbacks: Any) -> None:
    if calls.innermost() is not None:
        _call_begins(f"prediction {next(_predictions)}", callbacks.model)


def _call_begins(label: str, model: Any, flags: Any = None) -> list[Any]:
    own_updates.mark_checked()
    call = calls.innermost()
    assert call is not None
    call.label, call.unbuilt = label, not model.built
    everyone = _meet(label, model, flags)
    synchronize_states(model, f"start of {label}")
    return everyone


def call_ends(callbacks: Any) -> None:
    """At the end of evaluate and predict: raises if the first step has built trainable weights with
    different values on the ranks."""
    call = calls.innermost()
    if call is None or not call.unbuilt:
        return
    model = callbacks.model
    if not model.built or call.model is not model:
        return
    call.unbuilt = False
    everyone = control_plane.headers(f"end of {call.label}", _trainable_digests(model))
    if any(theirs != everyone[0] for theirs in everyone):
        raise RuntimeError(
            f"{call.kind}() built model '{model.name}' with different weights on each rank: they "
            "were drawn without a common seed. Build the model before that call, with "
            "model.build(input_shape) or keras.Input as its first layer"
        )


def compiling_nothing(supports_jit: Any) -> Any:
    """Makes jit_compile="auto" False, for a TensorFlow that cannot average in compiled steps."""
    return lambda model: False


def over_ranks(original: Any) -> Any:
    """Wraps _get_metrics_result_or_logs, and tf_keras's counterpart.

    It runs once at the end of an epoch of fit, and of an evaluation, on all ranks.
    """

    def get_logs(self: Any, logs: Any) -> Any:
        if getattr(_inside, "on", False):
            return original(self, logs)
        with threads.inside(_inside, on=True):
            number = next(_epoch_ends)
            call = calls.innermost()
            kind = "test_step" if call is not None and call.kind == "evaluate" else "train_step"
            logs_of_ranks.sum_metrics(self, kind, f"metrics {number}")
            result = original(self, logs)
            if result is logs:  # a step of the script returns other values than metrics
                result = logs_of_ranks.combine_step_logs(self, kind, logs, f"logs {number}")
            synchronize_states(self, f"end of {kind} {number}")
            return result

    return get_logs


def synchronize_states(model: Any, label: str) -> None:
    """Averages state that steps change on each rank, such as batch-norm's moving averages.

    Moving averages that steps synchronize are already the same on all ranks. Only variables that
    differ between ranks are changed. Trainable weights that differ, although averaged gradients
    should keep them equal, are reset to rank 0's; a difference beyond rounding is an error.
    """
    if not model.built and not getattr(model, "inputs", None):
        return
    trained = list(model.trainable_weights)
    to_compare = [*trained, *(v for v in model.non_trainable_weights if _is_float(v))]
    everyone = control_plane.headers(label, [_digest(variable) for variable in to_compare])
    if any(len(theirs) != len(everyone[0]) for theirs in everyone):
        return  # a rank has built more of the model
    differing = [i for i in range(len(to_compare)) if len({theirs[i] for theirs in everyone}) > 1]
    if not differing:
        return
    gathered = control_plane.gather(
        f"{label}: state", None, [unwrap.value(to_compare[i]) for i in differing]
    )
    for place, i in enumerate(differing):
        parts = [arrays[place] for _, arrays in gathered]
        _check_numbers(to_compare[i], parts, label)
        if i < len(trained):
            _check_rounding(to_compare[i], parts, label)
            to_compare[i].assign(parts[0])
        else:
            mean = np.mean([part.astype(np.float64) for part in parts], axis=0)
            to_compare[i].assign(mean.astype(parts[0].dtype))


def _is_float(variable: Any) -> bool:
    return bool(unwrap.tf_variable(variable).dtype.is_floating)


def _check_numbers(variable: Any, parts: list[Any], label: str) -> None:
    """NaN on every rank matches one process; NaN on some ranks is an error."""
    nans = [np.isnan(part.astype(np.float64)) for part in parts]
    for rank, places in enumerate(nans[1:], start=1):
        if (places != nans[0]).any():
            theirs = rank if (places & ~nans[0]).any() else 0
            raise RuntimeError(
                f"{label}: weight '{variable.name}' is NaN on rank {theirs} where it is a number "
                f"on rank {0 if theirs else rank}: something changed it on one rank only, "
                "bypassing the optimizer, or that rank's processor or memory is faulty. Make the "
                "change on all ranks, or look at that node with "
                "python -m tensorflow.mpi doctor --nodes"
            )


def _check_rounding(variable: Any, parts: list[Any], label: str) -> None:
    first = parts[0].astype(np.float64)
    for rank, part in enumerate(parts[1:], start=1):
        other = part.astype(np.float64)
        same = (other == first) | np.isnan(first)  # NaN is in the same places in both
        with np.errstate(invalid="ignore"):
            distance = np.where(same, 0, np.abs(other - first) / np.maximum(1, np.abs(first)))
        if not np.max(distance, initial=0) <= 1e-3:
            raise RuntimeError(
                f"{label}: weight '{variable.name}' differs between ranks 0 and {rank} by up to "
                f"{np.max(distance):.2g} (relative, for values above 1): something changed it on "
                "one rank only, bypassing the optimizer. Make the change on all ranks, or call "
                "tf.mpi.broadcast_variables after it"
            )
