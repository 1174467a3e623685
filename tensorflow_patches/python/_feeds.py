"""What Keras 3 and tf_keras have in common: datasets given to fit, evaluate and predict.

A dataset is replaced by this rank's part of it (_share.py). A train or test step gets the samples
as the script's own step expects them, and runs under the weight that they have in the average.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterable
from typing import Any

from tensorflow.mpi import _agree, _average, _hooks, _share, config

_numbers = itertools.count(1)  # of datasets, in program order


def sharded() -> bool:
    """Whether fit, evaluate and predict split what all ranks are given alike."""
    return _hooks.size > 1 and config.get("TF_MPI_SHARD") != "off"


def share_out(
    dataset: Any, what: str, num_batches: int | None, sizes: Collection[int] | None
) -> Any:
    """This rank's part of `dataset`; all ranks call it at the same point of the program.

    Args:
      dataset: a tf.data.Dataset of batches, the same on all ranks.
      what: names it in errors.
      num_batches: in one epoch; None if unknown or without end.
      sizes: as for _share.kind_of_share, if the caller knows; else they are looked for.

    Raises:
      ValueError: the ranks were given datasets of different sizes.
    """
    sizes = sizes or _share.batch_sizes(dataset)
    _check_alike(what, num_batches, sizes)
    return _share.shard_batches(dataset, sizes, _share.kind_of_share(sizes))


def _check_alike(what: str, num_batches: int | None, sizes: Collection[int] | None) -> None:
    """Ranks that would wait for batches that others do not have are stopped now."""
    mine = [num_batches, sorted(sizes) if sizes else None]
    everyone = _agree.headers(f"data {next(_numbers)}: {what}", mine)
    for rank, theirs in enumerate(everyone):
        if theirs != everyone[0]:
            raise ValueError(
                f"{what}: rank 0 was given {_amount(everyone[0])}, rank {rank} {_amount(theirs)}. "
                "Give all ranks the same data, of which each then takes its part, or set "
                "TF_MPI_SHARD=off if the script gives each rank its own part"
            )


def _amount(described: Any) -> str:
    num_batches, sizes = described
    number = "an unknown number of" if num_batches is None else str(num_batches)
    of_sizes = f" of {' or '.join(map(str, sizes))} samples" if sizes else ""
    return f"{number} batches{of_sizes}"


def step_on_share(model: Any, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A train_step or test_step of `model` that takes elements of share_out's datasets, too.

    A share without weight leaves metrics and moving averages as they are.
    """

    def run(data: Any) -> Any:
        if not _share.is_share(data):
            return step(data)
        before = _values(_states(model)) if isinstance(data, _share.MaybeShare) else []
        with _average.weighted(data.weight):
            logs = step(data.data)
        if before:
            _restore_unless_counted(data.weight, before)
        return logs

    return run


def _states(model: Any) -> list[Any]:
    """What a step changes besides what the optimizer does: metrics, and moving averages."""
    metrics = [variable for metric in model.metrics for variable in metric.variables]
    return [*metrics, *model.non_trainable_variables]


def _values(variables: Iterable[Any]) -> list[tuple[Any, Any]]:
    import tensorflow as tf

    found = [getattr(variable, "_value", variable) for variable in variables]
    return [
        (variable, tf.identity(variable))
        for variable in {id(v): v for v in found}.values()
        if isinstance(variable, tf.Variable)
    ]


def _restore_unless_counted(weight: Any, before: list[tuple[Any, Any]]) -> None:
    import tensorflow as tf

    def restore() -> Any:
        for variable, value in before:
            variable.assign(value)
        return tf.constant(0)

    tf.cond(weight > 0, lambda: tf.constant(0), restore)


def wrap_steps(model: Any) -> None:
    """Lets the model's train_step and test_step take elements of share_out's datasets.

    Wherever the script has defined them: in the model's class, in a mixin, or on the model itself.
    """
    for name in ("train_step", "test_step"):
        if name in vars(model):
            step = vars(model)[name]
            if not hasattr(step, "_tf_mpi_step"):
                vars(model)[name] = _marked(step_on_share(model, step))
        elif not hasattr(getattr(type(model), name), "_tf_mpi_step"):
            setattr(type(model), name, _method_on_share(getattr(type(model), name)))


def _marked(step: Any) -> Any:
    step._tf_mpi_step = True
    return step


def _method_on_share(original: Any) -> Any:
    @functools.wraps(original)
    def step(self: Any, data: Any) -> Any:
        return step_on_share(self, functools.partial(original, self))(data)

    return _marked(step)
