"""Functions of tf.data that are made of a few CPU ops begin at once.

A function that an iterator calls is instantiated with the iterator, and TensorFlow takes each for
one of several devices: Grappler and the placer go over its graph, for 2 ms. Two to five such
functions are what most of a call of fit, evaluate or predict on small arrays costs. Those that only
count, slice and gather are the same without; an attribute of a function says that it is of one
device (FunctionMetadata::Create in tensorflow/core/data/captured_function.cc).

A script's own functions are left as they are.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

_ATTRIBUTE = "experimental_ints_on_device"
_making = threading.local()


class _Attributes(dict[str, Any]):
    def update(self, *args: Any, **kwargs: Any) -> None:
        super().update(*args, **kwargs)
        self.pop("_tf_data_function", None)


@contextlib.contextmanager
def functions() -> Iterator[None]:
    """Inside, this thread makes no function of a script."""
    before = getattr(_making, "on", False)
    _making.on = True
    try:
        yield
    finally:
        _making.on = before


def traced(original: Any) -> Any:
    """Wraps StructuredFunctionWrapper.__init__."""

    def init(self: Any, *args: Any, defun_kwargs: Any = None, **kwargs: Any) -> None:
        if getattr(_making, "on", False):
            defun_kwargs = _Attributes({**(defun_kwargs or {}), _ATTRIBUTE: True})
        original(self, *args, defun_kwargs=defun_kwargs, **kwargs)

    return init


def making(original: Any) -> Any:
    """Wraps what makes a dataset of arrays."""

    def make(*args: Any, **kwargs: Any) -> Any:
        with functions():
            return original(*args, **kwargs)

    return make
