"""Keras optimizers average their gradients at their outermost update call.

They update variables with assign ops, so no decorated optimizer op sees their gradients; the
average is an IdentityN (average/carrier.py), whose kernel is decorated. Every update begins in one
of a few methods. The outermost call of any of them, in the class itself or in a subclass's
override, averages all gradients in one op before anything else sees them, so clipping,
accumulation, unscaling and the check for finite values have the same outcome on all ranks. This
covers Keras 3 on the TensorFlow backend, and tf_keras's current and legacy optimizers.
"""

from __future__ import annotations

import functools
import threading
import weakref
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.average import averaging, scope, script_gradients
from tensorflow.mpi._src.global_batch import gradients
from tensorflow.mpi._src.interpose import hooking
from tensorflow.mpi._src.keras import adapters
from tensorflow.mpi._src.runtime import hooks, threads
from tensorflow.mpi._src.variables import initial_broadcast, naming, unwrap

_OLDEST_KERAS = (3, 10)

_inside = threading.local()  # .on: whether an update is under way on this thread


def is_updating() -> bool:
    return getattr(_inside, "on", False)


# Modules and packages whose optimizers make the same update if duplicate rows of a sparse gradient
# are summed first, unless they clip: tf_keras's sum the rows after clipping.
_SUM_ROWS = ("keras.src.optimizers.sgd",)
_TF_KERAS_SUM_ROWS = ("tf_keras.src.optimizers.", "tensorflow.python.keras.optimizer_v2.")


def averaging_lists(original: Any) -> Any:
    """Wraps Keras 3's apply(grads, trainable_variables=None)."""
    average = functools.partial(_averaged_lists, _SUM_ROWS)
    return _averaging(average, _unsupported(), _left_to_inner(original))


def averaging_pairs(original: Any) -> Any:
    """Wraps Keras 3's apply_gradients(grads_and_vars, ...)."""
    return _averaging(functools.partial(_averaged_pairs, _SUM_ROWS), _unsupported(), original)


def averaging_tf_keras(original: Any) -> Any:
    """Wraps apply_gradients(grads_and_vars, ...) of tf_keras and tensorflow.python.keras."""
    average = functools.partial(_averaged_pairs, _TF_KERAS_SUM_ROWS)
    return _averaging(average, None, _left_to_inner(original))


def passes_gradients_unaveraged(train_step: Any) -> Any:
    """Wraps Keras's own step, which passes gradients to the optimizer unchanged."""

    def step(self: Any, data: Any) -> Any:
        with scope.averaging_follows():
            return train_step(self, data)

    return step


def unless_averaged(original: Any) -> Any:
    """For averaged gradients, skips the sum over a strategy's replicas if there is only one.

    That sum joins all gradients, so no variable would be updated before the last average is done.
    """

    def sum_over_replicas(self: Any, grads_and_vars: Any) -> Any:
        replicas = tf.distribute.get_strategy().extended
        alone = getattr(replicas, "_tf_mpi_one_rank", not tf.distribute.has_strategy())
        if is_updating() and alone:
            return grads_and_vars
        return original(self, grads_and_vars)

    return sum_over_replicas


@functools.cache
def _unsupported() -> str | None:
    """Why this Keras 3 is not supported, with the remedy; None if it is.

    Raised by an update rather than the import, as `import tensorflow` imports Keras, used or not.
    """
    backend = hooking.used("keras.src.backend.config:backend")
    version = hooking.version_of("keras")
    if hooking.numbers(version) < _OLDEST_KERAS:
        return (
            f"Keras {version} is older than 3.10, so its gradients would not be averaged over "
            "ranks. Install keras>=3.10 or tf_keras, or run with TF_MPI_ENABLE=0"
        )
    if backend() != "tensorflow":
        return (
            f"Keras runs on the backend {backend()}, whose gradients tensorflow.mpi does "
            "not average over ranks. Set KERAS_BACKEND=tensorflow, or run with TF_MPI_ENABLE=0"
        )
    return None


def _averaging(average: Callable[..., Any], reason: str | None, original: Any) -> Any:
    """Wraps a method that begins an update: averages first. `reason`: why it is unsupported."""

    def update(self: Any, grads: Any = None, *args: Any, **kwargs: Any) -> Any:
        grads = kwargs.pop("grads_and_vars", grads)  # apply_gradients' name for it
        if is_updating() or not hooks.active:
            return original(self, grads, *args, **kwargs)
        if reason is not None:
            raise NotImplementedError(f"optimizer {type(self).__name__}: {reason}")
        if gradients.intercept_in_trace(grads):  # the step is only analyzed
            return getattr(self, "iterations", None)
        args = tuple(map(_kept, args))
        kwargs = {name: _kept(argument) for name, argument in kwargs.items()}
        with threads.inside(_inside, on=True):
            grads = average(self, grads, *args, **kwargs)
            with scope.already_averaged():
                return original(self, grads, *args, **kwargs)

    return update


def _left_to_inner(original: Any) -> Any:
    """Wraps the update of an optimizer such as LossScaleOptimizer, which may skip it: if the one
    inside it is of Horovod's API, that one reduces first, so that all ranks skip the same updates.
    """

    def update(self: Any, *args: Any, **kwargs: Any) -> Any:
        inner: Any = getattr(self, "inner_optimizer", None)
        if not hasattr(inner, "_tf_mpi_update"):
            return original(self, *args, **kwargs)
        return inner._tf_mpi_update(self, functools.partial(original, self), *args, **kwargs)

    return update


def _kept(argument: Any) -> Any:
    """An iterator's values as a list: the average reads them, and then the optimizer."""
    return list(argument) if isinstance(argument, Iterator) else argument


def _averaged_lists(
    sum_rows: tuple[str, ...],
    optimizer: Any,
    grads: Any,
    trainable_variables: Any = None,
    **_: Any,
) -> list[Any]:
    """For apply(grads, trainable_variables=None)."""
    grads = list(grads)
    if trainable_variables is None:
        trainable_variables = optimizer._trainable_variables
    return _averages_of_replica(optimizer, grads, list(trainable_variables), sum_rows)


def _averaged_pairs(
    sum_rows: tuple[str, ...], optimizer: Any, grads: Any, *_: Any, **__: Any
) -> list[tuple[Any, Any]]:
    """For apply_gradients(grads_and_vars, ...)."""
    pairs = list(grads)
    variables = [variable for _, variable in pairs]
    gradients_only = [gradient for gradient, _ in pairs]
    averages = _averages_of_replica(optimizer, gradients_only, variables, sum_rows)
    return list(zip(averages, variables))


def _averages_of_replica(
    optimizer: Any, grads: list[Any], variables: list[Any], sum_rows: tuple[str, ...]
) -> list[Any]:
    """As _averages, for this thread's replica of a strategy, if there is one.

    Replicas of a strategy that pass the same tensors share one average, because the strategy counts
    a shared tensor once.
    """
    replica = _replica()
    if replica is None:
        return _averages(optimizer, grads, variables, sum_rows)
    before, averages = _first_replicas.get(optimizer, ([], []))
    if replica == 0 or list(map(id, before)) != list(map(id, grads)):
        averages = _averages(optimizer, grads, variables, sum_rows)
    if replica == 0:
        _first_replicas[optimizer] = (list(grads), averages)
    return list(averages)


# By optimizer: the gradients of a strategy's first replica in the last step, and their averages.
_first_replicas: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def _replica() -> int | None:
    """The number of this thread's replica in the strategy; None if there is only one."""
    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return None
    number = replica.replica_id_in_sync_group
    static = number if isinstance(number, int) else tf.get_static_value(number)
    return None if static is None else int(static)


def _averages(
    optimizer: Any, grads: list[Any], variables: list[Any], sum_rows: tuple[str, ...]
) -> list[Any]:
    """The gradients averaged over ranks; None stays None.

    A sparse gradient stays sparse, and has the rows that one process has, with duplicates: its
    optimizer may square each row separately, or take the norm of all. Duplicates are summed only
    where that makes no difference (adapters.sums_rows).
    """
    present = [i for i, gradient in enumerate(grads) if gradient is not None]
    if not present:
        return grads
    no_variable = any(isinstance(variable, tf.Tensor) for variable in variables)
    if len(grads) != len(variables) or no_variable:
        return grads  # the optimizer raises an error for it
    names = {i: _path(variables[i]) for i in present}
    averaged = list(grads)
    done = dict.fromkeys(present, False)
    for i in present:
        if not isinstance(grads[i], tf.IndexedSlices):
            averaged[i] = tf.convert_to_tensor(grads[i])
        averaged[i], done[i] = script_gradients.resolve(averaged[i])
        if not done[i]:
            averaged[i] = averaging.with_dense_shape_of(averaged[i], variables[i])
    label = _label(optimizer, list(names.values()), [averaged[i] for i in present])
    _synchronize(optimizer, [variables[i] for i in present])
    new = [i for i in present if not done[i]]
    averages = averaging.average_all(
        [averaged[i] for i in new],
        [names[i] for i in new],
        label,
        every_row=not adapters.sums_rows(optimizer, sum_rows),
    )
    for i, value in zip(new, averages, strict=True):
        averaged[i] = value
    return averaged


def _path(variable: Any) -> str:
    return str(getattr(variable, "path", None) or variable.name)


def _label(optimizer: Any, names: list[str], grads: list[Any]) -> str:
    """The label of the averages: the same on all ranks, even if some also train other models."""
    what = "; ".join(f"{name} {grad.dtype.name}" for name, grad in zip(names, grads))
    key = f"{type(optimizer).__name__} {zlib.crc32(what.encode()):08x}"
    number = naming.number_of_user(key, optimizer)
    return key if number == 1 else f"{key} optimizer {number}"


def _synchronize(optimizer: Any, variables: list[Any]) -> None:
    """Gives all ranks rank 0's values before the first step with these variables."""
    if tf.executing_eagerly():
        initial_broadcast.before_eager_update(optimizer, variables)
    else:
        handles = [unwrap.tf_variable(v).handle for v in variables]
        naming.graph_trains(tf.compat.v1.get_default_graph(), handles)
