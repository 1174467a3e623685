"""One order of elements on all ranks where a script leaves it open.

`deterministic=False`, of a transformation or as an option, says that any order will do. The one of
a deterministic execution is one, and all ranks have it alike, without asking each other. So the ops
that make datasets are told so, also those in functions.
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
    """Wraps an op of gen_dataset_ops that has an attribute `deterministic` or `sloppy`."""
    signature = inspect.signature(op)

    @hooking.without_autograph
    @functools.wraps(op)
    def make(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        return _made(op, arguments, opened(arguments))

    return make


def opened(attributes: Any) -> dict[str, Any]:
    """Those attributes of an op, by name, that leave an order open; and what they should be."""
    found: dict[str, Any] = {}
    if attributes.get("deterministic") == "false":
        found["deterministic"] = "true"
    if attributes.get("sloppy") is True:
        found["sloppy"] = False
    return found


def options(op: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps gen_dataset_ops.options_dataset."""

    @functools.wraps(op)
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
    """A dataset. Where ranks need not have one order it is the script's; an open one is noted."""
    if entropy.is_shared():
        return op(**{**arguments, **instead})
    dataset = op(**arguments)
    if instead:
        setattr(dataset, _OPEN, True)
    return dataset


def is_open(dataset: Any) -> bool:
    """Whether this transformation may give its elements in another order on each rank."""
    return hasattr(dataset._variant_tensor, _OPEN)
