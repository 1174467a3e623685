"""Large variables such as embeddings, which are compared and synchronized in place, not copied."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.mpi._src.messaging import collectives, control_plane
from tensorflow.mpi._src.runtime import c_api, group

LIMIT = 2**26  # bytes; smaller variables are packed together (messaging/control_plane.py)


def is_large(dtype: Any, shape: list[int]) -> bool:
    """Whether a tensor of this TensorFlow dtype and shape is large."""
    size = int(dtype.size)
    for dimension in shape:
        size *= dimension
    return size >= LIMIT


@dataclasses.dataclass
class EagerVariable:
    """An eager variable, by its handle; the ops are in glue/variables/variable_ops.cc."""

    handle: Any

    def digest(self) -> int:
        """A hash of the value: ranks with equal digests hold the same value."""
        (result,) = self._execute(b"TfMpiVariableDigest", 1, [self.handle])
        return int(result.numpy())

    def broadcast_from_rank_0(self, label: str) -> None:
        """Broadcasts rank 0's value into the variable; `label` identifies the exchange."""
        self._execute(b"TfMpiBroadcastVariable", 0, [self.handle, tf.convert_to_tensor(label)])

    @staticmethod
    def _execute(op: bytes, outputs: int, inputs: list[Any]) -> list[Any]:
        from tensorflow.python.eager import context, execute

        found: list[Any] = execute.execute(
            op, outputs, inputs=inputs, attrs=None, ctx=context.context()
        )
        return found


def digest(handle: Any) -> int:
    """The digest of an eager variable of any size; see EagerVariable.digest."""
    shape = tf.raw_ops.VariableShape(input=handle).numpy().tolist()
    if is_large(_dtype(handle), shape):
        return EagerVariable(handle).digest()
    return control_plane.digest(view(handle))


def _dtype(handle: Any) -> Any:
    return tf.as_dtype(handle._handle_data.shape_and_type[0].dtype)


def view(handle: Any) -> np.ndarray[Any, Any]:
    """The value of an eager variable. On the CPU it shares the variable's memory, so the variable
    must not change while the view is in use."""
    dtype = _dtype(handle)
    value: np.ndarray[Any, Any] = np.asarray(
        tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)._numpy_internal()
    )
    return value


@contextlib.contextmanager
def shared_fetches() -> Iterator[None]:
    """Inside, Session.run on this thread returns the values of variables without copying them.

    Only variables may be fetched, and their arrays must be released before the Session runs a
    step. Does not nest: the inner block's end ends both. See glue/internals/shared_fetches.h.
    """
    c_api.load().tfmpi_share_fetches(1)
    try:
        yield
    finally:
        c_api.load().tfmpi_share_fetches(0)


@dataclasses.dataclass
class FetchedVariable:
    """A Session's variable, inside shared_fetches().

    `array`: the fetched value. `received`: rank 0's value, if the caller must still write it into
    the variable because `array` does not belong to the variable alone.
    """

    array: np.ndarray[Any, Any]
    received: np.ndarray[Any, Any] | None = None

    def digest(self) -> int:
        """See EagerVariable.digest."""
        return control_plane.digest(self.array)

    def broadcast_from_rank_0(self, label: str) -> None:
        """See EagerVariable.broadcast_from_rank_0; the value may be in `received` afterwards."""
        array = self.array
        if group.rank != 0 and not c_api.load().tfmpi_is_lone_variable(array.ctypes.data):
            array = self.received = np.empty_like(array)
        collectives.run("broadcast", array.reshape(-1).view(np.uint8), label, in_place=True)
