"""Large variables, as embeddings: compared and brought in step where they lie, without a copy.

Eager resource variables only; the ops are glue/variable_ops.cc's.
"""

from __future__ import annotations

from typing import Any

LIMIT = 2**26  # bytes; what is smaller travels packed with others (_agree.py)


def is_large(dtype: Any, shape: list[int]) -> bool:
    """Whether a tensor of this TensorFlow dtype and shape is."""
    size = int(dtype.size)
    for dimension in shape:
        size *= dimension
    return size >= LIMIT


def handle(variable: Any) -> Any:
    """The handle of an eager tf.Variable that is large, else None."""
    found = getattr(variable, "handle", None)
    shape = getattr(variable, "shape", None)
    if not hasattr(found, "_numpy_internal") or shape is None or not shape.is_fully_defined():
        return None
    return found if is_large(variable.dtype, shape.as_list()) else None


def digest(handle: Any) -> int:
    """Two ranks whose digests of a variable are equal hold the same value."""
    (result,) = _execute(b"TfMpiVariableDigest", 1, [handle])
    return int(result.numpy())


def receive(handle: Any, label: str) -> None:
    """Rank 0's value of a variable becomes every rank's, who meet under `label`."""
    from tensorflow.python.framework import ops

    _execute(b"TfMpiBroadcastVariable", 0, [handle, ops.convert_to_tensor(label)])


def _execute(op: bytes, outputs: int, inputs: list[Any]) -> list[Any]:
    from tensorflow.python.eager import context, execute

    found: list[Any] = execute.execute(
        op, outputs, inputs=inputs, attrs=None, ctx=context.context()
    )
    return found
