"""An extra: optimizers skip the search for duplicates in a sparse average, which has none.

That search, with a hash table and a copy of all rows, takes half the time of an update.
"""

from __future__ import annotations

from typing import Any

from tensorflow.mpi import config
from tensorflow.mpi._src.average import carrier


def _is_on() -> bool:
    return "distinct_rows" in config.get("TF_MPI_EXTRAS")


def unless_distinct(original: Any) -> Any:
    """Wraps an optimizer's function that sums the duplicates of given values and indices."""
    if not _is_on():
        return original

    def deduplicate(values: Any, indices: Any) -> Any:
        if carrier.is_distinct(values, indices):
            return values, indices
        return original(values, indices)

    return deduplicate


def unless_gradient_distinct(original: Any) -> Any:
    """Wraps an optimizer's method that sums the duplicates of given gradients."""
    if not _is_on():
        return original

    def deduplicate(self: Any, grads: Any) -> list[Any]:
        done: list[Any] = []
        for gradient in grads:
            values, indices = (getattr(gradient, name, None) for name in ("values", "indices"))
            distinct = indices is not None and carrier.is_distinct(values, indices)
            done += [gradient] if distinct else original(self, [gradient])
        return done

    return deduplicate
