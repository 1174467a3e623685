"""What a thread says of the averages and updates that it makes: their weight, and what is done."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from tensorflow.mpi._src.runtime import c_api

_local = threading.local()  # weight, depth


@contextlib.contextmanager
def weighted(weight: Any) -> Iterator[None]:
    """On this thread, `current_weight()` is `weight` inside: around a Keras train step."""
    before = current_weight()
    _local.weight = weight
    try:
        yield
    finally:
        _local.weight = before


def current_weight() -> Any:
    """The weight of this rank's samples in the step that is being traced or run; None if unset."""
    return getattr(_local, "weight", None)


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
        before = c_api.load().tfmpi_set_averaged(1)
        _local.depth = getattr(_local, "depth", 0) + 1
        try:
            yield
        finally:
            _local.depth -= 1
            c_api.load().tfmpi_set_averaged(before)


def is_inside_already_averaged() -> bool:
    """Whether this thread is inside `already_averaged()`."""
    return getattr(_local, "depth", 0) > 0
