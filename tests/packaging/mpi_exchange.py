"""Exchanges GPU memory with a transport library alone: `mpi_exchange.py LIBRARY`.

The memory is actually the host's: an MPI that claims to be CUDA-aware (tests/mpi/says_cuda.cc)
does not know the difference.
"""

from __future__ import annotations

import ctypes
import sys
import time

import numpy as np
from common import result

BYTES = (0, 1, 5000, (3 << 20) + 17)
_NAMES = """init split map_node send probe receive allreduce plain_allreduce allgather broadcast
finalize can_shrink has_failed_rank agree regroup takes_gpu_memory start_exchange
test_exchange""".split()


class Transport(ctypes.Structure):
    """TfMpiTransport of core/transport/mpi/plugin.h."""

    _fields_ = [("abi", ctypes.c_uint32), *((name, ctypes.c_void_p) for name in _NAMES)]


class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in ("rank", "size")] + [
        ("more", ctypes.c_char * 512)
    ]


class Part(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]


library = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
library.tfmpi_transport_get.restype = ctypes.POINTER(Transport)
transport = library.tfmpi_transport_get().contents
error = ctypes.create_string_buffer(512)


def call(name: str, *arguments: object) -> None:
    function = ctypes.CFUNCTYPE(ctypes.c_int)(getattr(transport, name))
    if function(*arguments, error) != 0:
        sys.exit(f"{name}: {error.value.decode()}")


def sent(source: int, target: int, lane: int) -> np.ndarray:
    count = BYTES[(source + target + lane) % len(BYTES)]
    return (np.arange(count) + 37 * source + 59 * target + lane).astype(np.uint8)


def parts(arrays: list[np.ndarray]) -> ctypes.Array[Part]:
    return (Part * len(arrays))(*(Part(one.ctypes.data, one.nbytes) for one in arrays))


def exchange(lane: int, rank: int, size: int) -> bool:
    """Whether the messages of the other ranks have arrived."""
    outgoing = [sent(rank, other, lane) for other in range(size)]
    incoming = [np.zeros_like(sent(other, rank, lane)) for other in range(size)]
    call("start_exchange", ctypes.c_int32(lane), parts(outgoing), parts(incoming))
    ended = ctypes.c_int32(0)
    while not ended.value:
        call("test_exchange", ctypes.c_int32(lane), ctypes.byref(ended))
        time.sleep(1e-4)
    return all(
        np.array_equal(incoming[other], sent(other, rank, lane))
        for other in range(size)
        if other != rank
    )


info = Info()
call("init", ctypes.c_int32(0), ctypes.byref(info))
takes = ctypes.CFUNCTYPE(ctypes.c_int)(transport.takes_gpu_memory)()
right = [exchange(lane, info.rank, info.size) for lane in range(4) for _ in range(3)]
call("finalize")
result({"rank": info.rank, "takes": takes, "right": all(right), "exchanges": len(right)})
