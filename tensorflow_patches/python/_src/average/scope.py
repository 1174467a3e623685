"""What a thread says of the averages and updates that it makes: their weight, and what is done."""

from __future__ import annotations

import contextlib
import enum
import threading
from collections.abc import Iterator
from typing import Any

from tensorflow.mpi._src.runtime import c_api, group, threads

_local = threading.local()  # weight, averaged, step, follows, script, shares
_shared_out = False
_rows: set[int | None] | None = set()  # see own_rows()


class _Step(enum.Enum):
    """What the ranks compute a step of Keras on."""

    OWN = "each rank's own samples"
    ALIKE = "the same on all ranks"
    GIVEN = "what the script gave each rank, the same or not"


def weighted(weight: Any) -> contextlib.AbstractContextManager[None]:
    """On this thread, `current_weight()` is `weight` inside: around a Keras train step."""
    return threads.inside(_local, weight=weight)


def current_weight() -> Any:
    """The weight of this rank's samples in the step that is being traced or run; None if unset."""
    return getattr(_local, "weight", None)


def shares() -> contextlib.AbstractContextManager[None]:
    """What this thread takes of a loss inside is this rank's share: the ranks' add up. shares.py"""
    return threads.inside(_local, shares=True)


def is_of_shares() -> bool:
    """Whether this thread is inside `shares()`."""
    return bool(getattr(_local, "shares", False))


def share() -> Any:
    """This rank's part of the batch, by what its samples count: of all ranks together 1."""
    weight = current_weight()
    return (1.0 if weight is None else weight) / group.size


def gradient_weight() -> Any:
    """Of gradients that are taken now, in their average; None if it is 1.

    Times the number of ranks an average is a sum; but what a rank of no samples has is not 0, if it
    is no number.
    """
    weight = current_weight()
    if not is_of_shares():
        return weight
    if weight is None:
        return float(group.size)
    import tensorflow as tf

    return tf.where(weight > 0, float(group.size), 0.0)


def on_part() -> contextlib.AbstractContextManager[None]:
    """Around a Keras step of this rank's part of a batch."""
    return threads.inside(_local, step=_Step.OWN)


def replicated_step() -> contextlib.AbstractContextManager[None]:
    """Around a Keras step that every rank computes on the same data, and so with the same result.

    Its gradients are averaged all the same: ranks differ in rounding, and would drift apart. Those
    of embeddings are averaged row by row where they stand, so an optimizer sees one process's rows.
    The caller vouches for it, on all ranks; ranks whose gradients differ in shape hear an error.
    """
    return threads.inside(_local, step=_Step.ALIKE)


def on_given() -> contextlib.AbstractContextManager[None]:
    """Around a Keras step on what the script gave each rank itself, as train_on_batch has it.

    Inside another step it is that one's: an override that calls its super's.
    """
    return threads.inside(_local, step=getattr(_local, "step", None) or _Step.GIVEN)


def is_in_step() -> bool:
    """Whether this thread is in a step of Keras."""
    return getattr(_local, "step", None) is not None


def is_on_part() -> bool:
    """Whether this thread is inside `on_part()`."""
    return getattr(_local, "step", None) is _Step.OWN


def is_replicated_step() -> bool:
    """Whether this thread is inside `replicated_step()`."""
    return getattr(_local, "step", None) is _Step.ALIKE


def has_own_samples() -> bool:
    """Whether what this thread computes is of samples that no other rank has."""
    return is_on_part() or (_shared_out and not is_replicated_step())


def averaging_follows() -> contextlib.AbstractContextManager[None]:
    """Around what takes gradients and hands them to whoever averages all of them."""
    return threads.inside(_local, follows=True)


def does_averaging_follow() -> bool:
    """Whether this thread is inside `averaging_follows()`."""
    return bool(getattr(_local, "follows", False))


def duplicates(every_row: bool) -> int:
    """What an average does with rows of one index, as core/reduction/sparse_rows.h has it: 0 sums
    them, 1 keeps every row of every rank, 2 does so unless the ranks have the same.

    Ranks that are fed the same, in a loop of the script's own or by train_on_batch, are one
    process. Where data is shared out, rows that are the same are of samples that are.
    """
    if not every_row:
        return 0
    return 1 if has_own_samples() else 2


def share_out(rows: set[int] | None) -> None:
    """The script's own loop iterates this rank's part of a dataset.

    rows: the numbers of samples that a batch's part can have, the same on all ranks; None: unknown,
    or they differ by rank.
    """
    global _shared_out, _rows
    _shared_out = True
    _rows = None if rows is None or _rows is None else _rows | rows


def own_rows() -> set[int | None] | None:
    """How many samples a part can have, of all that has been shared out; None as of share_out."""
    return _rows


def is_shared_out() -> bool:
    return _shared_out


def for_the_script() -> contextlib.AbstractContextManager[None]:
    """Averages that this thread makes inside are of all ranks, also where averages are left to the
    script."""
    return threads.inside(_local, script=True)


def also_later() -> Any:
    """for_the_script, if this thread is inside it: for a gradient that is taken later."""
    return for_the_script if getattr(_local, "script", False) else contextlib.nullcontext


def is_alone() -> bool:
    """Whether an average that this thread makes is its own tensor."""
    return (group.group_size if getattr(_local, "script", False) else group.size) == 1


@contextlib.contextmanager
def already_averaged() -> Iterator[None]:
    """Apply ops that this thread creates in graphs, or runs eagerly, inside get averages already.

    Their kernels do not average again. Call no tf.function inside in eager code: whether its
    kernels run on this thread is TensorFlow's affair.
    """
    from tensorflow.python.eager import context

    with contextlib.ExitStack() as stack:
        if context.executing_eagerly():
            # The kernels must run on this thread.
            stack.enter_context(context.execution_mode(context.SYNC))
        stack.enter_context(threads.inside(_local, averaged=True))
        before = c_api.load().tfmpi_set_averaged(1)
        try:
            yield
        finally:
            c_api.load().tfmpi_set_averaged(before)


def is_inside_already_averaged() -> bool:
    """Whether this thread is inside `already_averaged()`."""
    return bool(getattr(_local, "averaged", False))
