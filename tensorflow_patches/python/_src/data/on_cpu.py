"""Makes small CPU functions of tf.data start fast.

TensorFlow instantiates the functions of a dataset with each iterator, as multi-device functions:
Grappler and the placer process each graph, which takes 2 ms. Two to five such functions are most of
the cost of fit, evaluate or predict on small arrays. Functions that only count, slice and gather do
not need this; an attribute declares them as single-device functions (FunctionMetadata::Create in
tensorflow/core/data/captured_function.cc).
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from tensorflow.mpi._src.runtime import threads

_ATTRIBUTE = "experimental_ints_on_device"
_making = threading.local()


class _Attributes(dict[str, Any]):
    """Drops the attribute by which tf.data's optimizers would change the function, and fail."""

    def update(self, *args: Any, **kwargs: Any) -> None:
        super().update(*args, **kwargs)
        self.pop("_tf_data_function", None)


def functions() -> contextlib.AbstractContextManager[None]:
    """Inside, functions that this thread traces are ours, not the script's."""
    return threads.inside(_making, on=True)


def traced(original: Any) -> Any:
    """Wraps StructuredFunctionWrapper.__init__."""

    def init(self: Any, *args: Any, defun_kwargs: Any = None, **kwargs: Any) -> None:
        if getattr(_making, "on", False):
            defun_kwargs = _Attributes({**(defun_kwargs or {}), _ATTRIBUTE: True})
        original(self, *args, defun_kwargs=defun_kwargs, **kwargs)

    return init


def making(original: Any) -> Any:
    """Wraps a function that makes a dataset from arrays."""

    def make(*args: Any, **kwargs: Any) -> Any:
        with functions():
            return original(*args, **kwargs)

    return make
