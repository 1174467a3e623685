"""Per-thread context of averages and updates: their weight, and what is averaged already."""

from __future__ import annotations

import contextlib
import enum
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.runtime import c_api, group, threads

_local = threading.local()  # weight, averaged, step, follows, script, shares
_divided = False  # see note_divided()
_rows: set[int] | None = set()  # see own_rows()


class _Step(enum.Enum):
    """The data on which the ranks compute a step of Keras."""

    OWN = "each rank's own samples"
    REPLICATED = "the same on all ranks"
    GIVEN = "passed by the script, the same on all ranks or not"


def weighted(weight: Any) -> contextlib.AbstractContextManager[None]:
    """Around a Keras train step: inside, on this thread, `current_weight()` is `weight`."""
    return threads.inside(_local, weight=weight)


def current_weight() -> Any:
    """The weight of this rank's samples in the step that is traced or run; None if unset."""
    return getattr(_local, "weight", None)


def shares() -> contextlib.AbstractContextManager[None]:
    """Inside, this thread takes gradients of this rank's share() of a loss; ranks add them up."""
    return threads.inside(_local, shares=True)


def is_inside_shares() -> bool:
    return bool(getattr(_local, "shares", False))


def share() -> Any:
    """This rank's weighted fraction of the batch; the ranks' fractions add up to 1.

    A factor for losses and gradients, not the glossary's share of a tensor.
    """
    weight = current_weight()
    return (1.0 if weight is None else weight) / group.size


def gradient_weight() -> Any:
    """The weight with which gradients taken now enter their average; None if it is 1.

    Inside `shares()` it is the number of ranks, which turns the average into a sum. For a rank
    without samples it is 0, which contributes zeros even if its gradient is NaN.
    """
    weight = current_weight()
    if not is_inside_shares():
        return weight
    if weight is None:
        return float(group.size)
    return tf.where(weight > 0, float(group.size), 0.0)


def on_part() -> contextlib.AbstractContextManager[None]:
    """Around a Keras step on this rank's part of a batch."""
    return threads.inside(_local, step=_Step.OWN)


def replicated_step() -> contextlib.AbstractContextManager[None]:
    """Around a Keras step that every rank computes on the same data, with the same result.

    Its gradients are averaged nevertheless, because ranks differ in rounding and would drift apart.
    Of sparse gradients the i-th rows of all ranks are averaged, so an optimizer sees one process's
    rows. The caller guarantees the same data on all ranks; gradients that differ in shape are an
    error.
    """
    return threads.inside(_local, step=_Step.REPLICATED)


def on_script_data() -> contextlib.AbstractContextManager[None]:
    """Around a Keras step on data that the script passes itself, as to train_on_batch.

    Inside another step, as in an override that calls super(), it changes nothing.
    """
    return threads.inside(_local, step=getattr(_local, "step", None) or _Step.GIVEN)


def is_in_step() -> bool:
    return getattr(_local, "step", None) is not None


def is_on_part() -> bool:
    return getattr(_local, "step", None) is _Step.OWN


def is_replicated_step() -> bool:
    return getattr(_local, "step", None) is _Step.REPLICATED


def has_own_samples() -> bool:
    """Whether, as far as known, this thread computes on samples that no other rank has."""
    return is_on_part() or (_divided and not is_replicated_step())


def averaging_follows() -> contextlib.AbstractContextManager[None]:
    """Around code that takes gradients and passes them on to be averaged."""
    return threads.inside(_local, follows=True)


def does_averaging_follow() -> bool:
    return bool(getattr(_local, "follows", False))


def duplicates(every_row: bool) -> int:
    """What an average does with rows of the same index: a value of Duplicates in
    core/reduction/sparse_rows.h. `every_row`: as for averaging.average_slices.

    0 sums them. 1 keeps all rows of all ranks. 2 does so, too, unless all ranks have identical
    rows, which then occur once: ranks that get the same data, in a loop of the script or by
    train_on_batch, act as one process. If data are divided, equal rows are of different samples.
    """
    if not every_row:
        return 0
    return 1 if has_own_samples() else 2


def note_divided(rows: set[int] | None) -> None:
    """Declares that a loop of the script iterates this rank's part of a dataset.

    Args:
      rows: the possible numbers of samples of a part, the same on all ranks; None if they are
        unknown or differ by rank.
    """
    global _divided, _rows
    _divided = True
    _rows = None if rows is None or _rows is None else _rows | rows


def own_rows() -> set[int] | None:
    """The possible numbers of samples of a part, over all divided datasets; None if unknown."""
    return _rows


def is_divided() -> bool:
    return _divided


def for_the_script() -> contextlib.AbstractContextManager[None]:
    """Inside, this thread averages over all ranks, even if averaging was left to the script."""
    return threads.inside(_local, script=True)


def capture_scope() -> Any:
    """for_the_script if this thread is inside it now, else nullcontext: to be called and entered
    where gradients are taken later."""
    return for_the_script if getattr(_local, "script", False) else contextlib.nullcontext


def is_alone() -> bool:
    """Whether an average that this thread makes is the identity."""
    return (group.group_size if getattr(_local, "script", False) else group.size) == 1


@contextlib.contextmanager
def already_averaged() -> Iterator[None]:
    """Inside, Apply ops that this thread creates in graphs or runs eagerly do not average again.

    In eager code do not call a tf.function inside: its kernels may run on other threads.
    """
    from tensorflow.python.eager import context

    with contextlib.ExitStack() as stack:
        if tf.executing_eagerly():
            # The kernels must run on this thread.
            stack.enter_context(context.execution_mode(context.SYNC))
        stack.enter_context(threads.inside(_local, averaged=True))
        before = c_api.load().tfmpi_set_averaged(1)
        try:
            yield
        finally:
            c_api.load().tfmpi_set_averaged(before)


def is_inside_already_averaged() -> bool:
    return bool(getattr(_local, "averaged", False))
