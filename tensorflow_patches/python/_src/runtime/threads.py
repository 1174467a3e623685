"""Thread-local state that lasts for the duration of a `with` block."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def inside(local: Any, **values: Any) -> Iterator[None]:
    """Sets attributes of `local`, a threading.local, inside the block, and restores their previous
    values, or None, afterwards."""
    before = {name: getattr(local, name, None) for name in values}
    vars(local).update(values)
    try:
        yield
    finally:
        vars(local).update(before)
