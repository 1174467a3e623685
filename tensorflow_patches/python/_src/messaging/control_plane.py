"""Small exchanges between all ranks in Python, which return every rank's values in rank order.

For decisions that must be the same on all ranks, at points that all ranks reach; not for gradients.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from tensorflow.mpi._src.messaging import collectives
from tensorflow.mpi._src.runtime import group

_LENGTH = struct.Struct("<QQ")  # bytes of a header, bytes of all arrays
_GROUP_BYTES = 2**26  # of a message of broadcast_arrays


def gather(
    label: str,
    header: Any,
    arrays: Sequence[np.ndarray[Any, Any]] = (),
    *,
    of_script: bool = False,
) -> list[tuple[Any, list[np.ndarray[Any, Any]]]]:
    """Waits for all ranks, and returns (header, arrays) of each, in rank order.

    Args:
      label: identifies the exchange on all ranks.
      header: any JSON value.
      arrays: may differ by rank in number, shape and dtype.
      of_script: see collectives.run.
    """
    arrays = [np.asarray(array) for array in arrays]
    kinds = [(_name(array.dtype), array.shape) for array in arrays]
    text = json.dumps([header, kinds]).encode()
    blocks = [array.tobytes() for array in arrays]
    block = b"".join([_LENGTH.pack(len(text), sum(map(len, blocks))), text, *blocks])
    data = np.frombuffer(block, np.uint8)
    gathered = memoryview(collectives.run("allgather", data, label, of_script=of_script).tobytes())
    found = []
    while gathered:
        text_bytes, array_bytes = _LENGTH.unpack_from(gathered)
        end = _LENGTH.size + text_bytes
        theirs, their_kinds = json.loads(bytes(gathered[_LENGTH.size : end]))
        found.append((theirs, _split(gathered[end : end + array_bytes], their_kinds)))
        gathered = gathered[end + array_bytes :]
    return found


def _name(dtype: np.dtype[Any]) -> str:
    # The str of a type that NumPy does not define, such as bfloat16, is that of raw bytes.
    return dtype.name if dtype.kind == "V" else dtype.str


def _split(data: memoryview, kinds: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """The arrays in `data`, by their (dtype, shape)."""
    arrays = []
    for dtype, shape in kinds:
        count = int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(data, dtype, count).reshape(shape)
        arrays.append(array)
        data = data[array.nbytes :]
    return arrays


def headers(label: str, header: Any) -> list[Any]:
    """Every rank's header, in rank order."""
    return [theirs for theirs, _ in gather(label, header)]


def headers_for_script(label: str, header: Any) -> list[Any]:
    """Like `headers`, but also works where averages are left to the script."""
    return [theirs for theirs, _ in gather(label, header, of_script=True)]


def any_rank(label: str, flag: bool) -> bool:
    """Whether `flag` is true on any rank."""
    value = np.array([flag], np.int32)
    return bool(collectives.run("allreduce", value, label, op="max")[0])


def digest(array: np.ndarray[Any, Any]) -> int:
    """A hash of the bytes of `array`, for comparing ranks."""
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data) ^ array.nbytes


def text_digest(texts: Sequence[str]) -> str:
    """A short hash, the same on every rank that has the same texts."""
    return f"{zlib.crc32(chr(10).join(texts).encode()):08x}"


def broadcast_arrays(
    label: str, arrays: Sequence[np.ndarray[Any, Any]]
) -> list[np.ndarray[Any, Any]]:
    """Broadcasts rank 0's arrays, none of them empty, in a few large messages; all ranks pass the
    same dtypes and shapes."""
    received: list[np.ndarray[Any, Any]] = []
    for number, together in enumerate(_groups(arrays)):
        packed = b"".join(np.asarray(a).tobytes() for a in together)
        data = np.frombuffer(packed, np.uint8)
        if group.size > 1:
            data = collectives.run("broadcast", data, f"{label} {number}", root=0)
        received += _split(memoryview(data.tobytes()), [(a.dtype, a.shape) for a in together])
    return received


def _groups(arrays: Sequence[np.ndarray[Any, Any]]) -> list[list[np.ndarray[Any, Any]]]:
    """Consecutive arrays of at most _GROUP_BYTES together, or a single larger one."""
    groups: list[list[np.ndarray[Any, Any]]] = []
    room = 0
    for array in arrays:
        if array.nbytes > room:
            groups.append([])
            room = _GROUP_BYTES
        groups[-1].append(array)
        room -= array.nbytes
    return groups
