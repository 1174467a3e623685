"""Collectives on numpy arrays, which call the library directly and need no TensorFlow session."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from tensorflow.mpi import errors
from tensorflow.mpi._src.presence import presence
from tensorflow.mpi._src.runtime import c_api, group, hooks

# Whether the script has combined the ranks' values by a collective, and so may average by itself.
combined_by_script = False
# The number of the last exchange that has started, and the highest of those that have ended.
last_started, last_ended = 0, 0
before_exchange: list[Callable[[], None]] = []  # called when an exchange starts

KINDS = {"allreduce": 0, "allgather": 1, "broadcast": 2, "barrier": 3}
# "plain sum": by the MPI library's own allreduce, except on GPUs and with TF_MPI_FAULT=shrink.
REDUCE_OPS = {"average": 0, "sum": 1, "min": 2, "max": 3, "product": 4, "plain sum": 5}
# core/base/types.h; half and bfloat16 are summed in float32.
DTYPES = {
    name: code
    for code, name in enumerate(
        "float16 bfloat16 float32 float64 complex64 complex128 int8 int16 int32 int64 "
        "uint8 uint16 uint32 uint64 bool".split()
    )
}

# A signal (Ctrl-C) is handled between waits of this length.
_WAIT_SECONDS = 0.1


def meeting_name(kind: str, name: str | None) -> str:
    """The name by which ranks match a call of the script. If `name` is None, all such calls have
    one name, and are matched in program order. Raises like refuse_in_child."""
    refuse_in_child(kind)
    global combined_by_script
    combined_by_script |= kind not in ("barrier", "broadcast")
    presence.uses()
    # A number for each call would not do: the ranks keep every name.
    return f"{kind} without a name" if name is None else f"{kind} {name}"


def refuse_in_child(kind: str) -> None:
    """Raises RuntimeError in a process that a rank has forked."""
    if group.forked_from is not None:
        raise RuntimeError(
            f"tf.mpi.{kind} was called in a process that rank {group.forked_from} has forked, "
            "which is not a rank. Call it in the rank itself"
        )


def barrier(name: str | None) -> None:
    """See tensorflow.mpi.barrier."""
    run("barrier", np.empty(0, np.uint8), meeting_name("barrier", name), of_script=True)


def run(
    kind: str,
    array: np.ndarray[Any, Any],
    name: str,
    *,
    op: str = "average",
    root: int = 0,
    in_place: bool = False,
    of_script: bool = False,
) -> np.ndarray[Any, Any]:
    """Carries out one collective under `name` and returns its result; waits for all ranks.

    `in_place`: the result of a broadcast or an allreduce overwrites `array`, which must be
    contiguous and in native byte order. `of_script`: the script has called this. Where averages are
    left to the script, collectives of the runtime itself involve this rank only.

    Raises subclasses of tf.errors.OpError, see errors.error_from_code; TypeError for an unsupported
    dtype.
    """
    # dtype.name does not name the byte order. ascontiguousarray makes scalars one-dimensional.
    native = array.dtype.newbyteorder("=")
    array = np.ascontiguousarray(array, dtype=native).reshape(np.shape(array))
    if array.dtype.name not in DTYPES:
        raise TypeError(
            f"{kind} of {array.dtype.name} is not supported; use one of {', '.join(DTYPES)}"
        )
    if not (hooks.active or of_script):
        return array if in_place else np.array(array, copy=True)
    out = None if kind == "allgather" else array if in_place else np.array(array, copy=True)
    global last_started, last_ended
    last_started += 1
    number = last_started
    for note in before_exchange:
        note()
    lib = c_api.load()
    presence.uses()
    presence.follow()
    operation = lib.tfmpi_begin(
        name.encode(),
        KINDS[kind],
        REDUCE_OPS[op],
        DTYPES[array.dtype.name],
        root,
        (ctypes.c_int64 * max(1, array.ndim))(*array.shape),
        array.ndim,
        array.ctypes.data,
        None if out is None else out.ctypes.data,
        _waits(kind),
    )
    error = c_api.error_buffer()
    ended = False
    try:
        while not lib.tfmpi_wait(operation, _WAIT_SECONDS):
            pass
        if kind == "allgather":
            out = _gathered(lib, operation, array)
        ended = True
    finally:
        code = lib.tfmpi_end(operation, error)
        if ended and code != errors.OK:
            raise errors.error_from_code(code, c_api.error_text(error))
    last_ended = max(last_ended, number)
    presence.follow()
    assert out is not None
    return out


class Gathering:
    """An allgather that runs while this thread does something else.

    `array`: of one of DTYPES; its first dimension may differ by rank.
    """

    def __init__(self, array: np.ndarray[Any, Any], name: str) -> None:
        self._array = np.ascontiguousarray(array)
        presence.uses()
        self._operation: Any = c_api.load().tfmpi_begin(
            name.encode(),
            KINDS["allgather"],
            REDUCE_OPS["average"],  # ignored
            DTYPES[array.dtype.name],
            0,
            (ctypes.c_int64 * array.ndim)(*array.shape),
            array.ndim,
            self._array.ctypes.data,
            None,
            -1,  # no thread waits for it
        )

    def result(self) -> np.ndarray[Any, Any]:
        """Waits for all ranks' rows and returns them in rank order; call once. Raises as `run`."""
        lib, error = c_api.load(), c_api.error_buffer()
        while not lib.tfmpi_wait(self._operation, _WAIT_SECONDS):
            pass
        out = _gathered(lib, self._operation, self._array)
        code = lib.tfmpi_end(self._operation, error)
        if code != errors.OK:
            raise errors.error_from_code(code, c_api.error_text(error))
        return out

    def withdraw(self) -> None:
        """Call instead of `result` to cancel the allgather if it has not ended."""
        c_api.load().tfmpi_end(self._operation, c_api.error_buffer())


def _waits(kind: str) -> int:
    """The argument `waits` of tfmpi_begin (c_api.h). At a barrier in a custom loop this rank has no
    gradients for the others; in fit all ranks take the same steps."""
    if not presence.alone():
        return 0
    return 2 if kind == "barrier" and presence.in_own_loop() else 1


def _gathered(lib: Any, operation: Any, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    rows = ctypes.c_int64()
    data = lib.tfmpi_gathered(operation, ctypes.byref(rows))
    out = np.empty((rows.value, *array.shape[1:]), array.dtype)
    if data is not None and out.nbytes:
        ctypes.memmove(out.ctypes.data, data, out.nbytes)
    return out
