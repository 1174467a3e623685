"""Metrics of a loop of the script's own over a dataset that is divided among the ranks.

Each rank adds its part's samples to a metric's state. When the loop has come to the end of the
dataset, which all ranks do together, having as many batches, the states of Keras's own metrics,
which are sums, become those of all ranks. So what is read after the loop, on one rank or on all, is
a plain read of one process's value. What is read before the end is of this rank's part.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from typing import Any

from tensorflow.mpi._src.average import scope
from tensorflow.mpi._src.interpose import hooking
from tensorflow.mpi._src.keras import calls, logs
from tensorflow.mpi._src.messaging import control_plane

_KERAS = ("keras.src.metrics.", "tf_keras.src.metrics.")
_ends = itertools.count(1)
_numbers = itertools.count(1)
# Those that a loop of the script's own has updated, in the order in which the program does.
_updated: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def updated(original: Any) -> Any:
    """Wraps a metric class's update_state: notes metrics that such a loop updates."""

    @hooking.not_converted
    @functools.wraps(original)
    def update_state(self: Any, *args: Any, **kwargs: Any) -> Any:
        own_loop = scope.is_shared_out() and calls.innermost() is None and not scope.is_in_step()
        if own_loop and self not in _updated and type(self).__module__.startswith(_KERAS):
            _updated[self] = next(_numbers)
        return hooking.as_here(original)(self, *args, **kwargs)

    return update_state


def at_end(original: Any) -> Any:
    """Wraps OwnedIterator.__next__: the end of a part of a dataset, in eager code, is a meeting."""

    @functools.wraps(original)
    def following(self: Any) -> Any:
        try:
            return original(self)
        except StopIteration:
            if _updated and _is_part(self._dataset) and calls.innermost() is None:
                label = f"metrics at the end of a dataset, {next(_ends)}"
                logs.sum_states(_of_all_ranks(f"{label}: which"), label)
            raise

    return following


def _of_all_ranks(label: str) -> list[Any]:
    """In the order of the program; without those that a rank's garbage collector has taken."""
    mine = {number: metric for metric, number in list(_updated.items())}
    everyone = control_plane.headers(label, sorted(mine))
    return [mine[number] for number in sorted(set(mine).intersection(*everyone))]


def _is_part(dataset: Any) -> bool:
    return hasattr(dataset, "_tf_mpi_part") or (
        hasattr(dataset, "_inputs") and any(map(_is_part, dataset._inputs()))
    )
