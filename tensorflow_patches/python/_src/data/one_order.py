"""The same order of elements on all ranks if a script allows any order.

`deterministic=False`, of a transformation or as an option, allows any order. The deterministic
order is one of these, and all ranks can take it without communication. So dataset ops, also those
in functions, are created as deterministic.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from tensorflow.mpi._src.interpose import hooking
from tensorflow.mpi._src.random import entropy

_OPEN = "_tf_mpi_order_is_open"


def deterministic(op: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps an op of gen_dataset_ops with an attribute `deterministic` or `sloppy`."""
    signature = inspect.signature(op)

    @hooking.without_autograph
    def make(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        return _made(op, arguments, opened(arguments))

    return make


def opened(attributes: Any) -> dict[str, Any]:
    """The attributes of an op that allow any order, by name, and the values to use instead."""
    found: dict[str, Any] = {}
    if attributes.get("deterministic") == "false":
        found["deterministic"] = "true"
    if attributes.get("sloppy") is True:
        found["sloppy"] = False
    return found


def options(op: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps gen_dataset_ops.options_dataset."""

    def make(input_dataset: Any, serialized_options: bytes, *args: Any, **kwargs: Any) -> Any:
        from tensorflow.core.framework import dataset_options_pb2

        found = dataset_options_pb2.Options.FromString(serialized_options)
        arguments = {"input_dataset": input_dataset, "serialized_options": serialized_options}
        instead = {}
        if found.WhichOneof("optional_deterministic") and not found.deterministic:
            found.deterministic = True
            instead["serialized_options"] = found.SerializeToString()
        return _made(functools.partial(op, *args, **kwargs), arguments, instead)

    return make


def _made(op: Callable[..., Any], arguments: dict[str, Any], instead: dict[str, Any]) -> Any:
    """Makes a dataset with the arguments `instead`, for one order on all ranks; if ranks need not
    agree, with the script's, and marks it as open."""
    if entropy.is_shared():
        return op(**{**arguments, **instead})
    dataset = op(**arguments)
    if instead:
        setattr(dataset, _OPEN, True)
    return dataset


def is_open(dataset: Any) -> bool:
    """Whether this transformation may yield its elements in different orders on the ranks."""
    return hasattr(dataset._variant_tensor, _OPEN)
