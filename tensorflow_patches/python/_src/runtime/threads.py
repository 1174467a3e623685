"""What a thread is in the middle of."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def inside(local: Any, **values: Any) -> Iterator[None]:
    """`local`, a threading.local, has these attributes inside; then what they were, or None."""
    before = {name: getattr(local, name, None) for name in values}
    vars(local).update(values)
    try:
        yield
    finally:
        vars(local).update(before)
