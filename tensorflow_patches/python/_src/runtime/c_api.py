"""A thin ctypes wrapper of the library's C API (glue/c_api/c_api.h); no other module loads it."""

from __future__ import annotations

import ctypes
import os
from typing import Any

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DIRECTORY = os.path.join(_PACKAGE, "lib")
LIBRARY = os.path.join(DIRECTORY, "libtensorflow_mpi.so")

_ERROR_BYTES = 4096  # TFMPI_API_ERROR_BYTES

# core/base/types.h: the DataType of float32 averages between nodes, by TF_MPI_COMPRESSION
WIRE = {"none": 2, "fp16": 0, "bf16": 1}

_JOINED = b"joined"  # kJoinedPost of core/engine/published.h


class Options(ctypes.Structure):
    """TfMpiOptions."""

    _fields_ = [
        ("transport_library", ctypes.c_char_p),
        ("settings", ctypes.c_char_p),
        ("roll_call_timeout", ctypes.c_double),
        ("fusion_threshold", ctypes.c_int64),
        ("stall_warning", ctypes.c_double),
        ("stall_timeout", ctypes.c_double),
        ("collective_timeout", ctypes.c_double),
        ("deadlock_timeout", ctypes.c_double),
        ("timeline", ctypes.c_char_p),
        ("stats", ctypes.c_int32),
        ("ranks_per_node", ctypes.c_int32),
        ("wire", ctypes.c_int32),
        ("sparse", ctypes.c_int32),
        ("extras", ctypes.c_char_p),
        ("device_transport", ctypes.c_int32),
        ("shares_gpu", ctypes.c_int32),
        ("cray_gpus", ctypes.c_int32),
        ("nccl_library", ctypes.c_char_p),
        ("shrink_on_fault", ctypes.c_int32),
    ]


class BenchCase(ctypes.Structure):
    """TfMpiBenchCase."""

    _fields_ = [
        ("kind", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("count", ctypes.c_int64),
        ("tensors", ctypes.c_int32),
        ("direct_rounds", ctypes.c_int32),
        ("engine_rounds", ctypes.c_int32),
        ("min_samples", ctypes.c_int32),
        ("max_samples", ctypes.c_int32),
        ("budget", ctypes.c_double),
        ("timeout", ctypes.c_double),
    ]


_lib: Any = None


def register_ops() -> None:
    """Registers our ops with TensorFlow, so that graphs saved by ranks load with averaging off."""
    ctypes.CDLL(LIBRARY, mode=os.RTLD_LOCAL | os.RTLD_NOW)


def load() -> Any:
    """The library. The first call loads it, and with it TensorFlow's libraries, which must not have
    been loaded before."""
    global _lib
    if _lib is None:
        lib = ctypes.CDLL(LIBRARY, mode=os.RTLD_LOCAL | os.RTLD_NOW)
        lib.tfmpi_start.argtypes = [ctypes.POINTER(Options), ctypes.c_char_p]
        lib.tfmpi_start_waits_for.argtypes = [ctypes.c_char_p, ctypes.c_int32]
        lib.tfmpi_join.argtypes = [ctypes.c_char_p]
        lib.tfmpi_generation.restype = ctypes.c_uint64
        lib.tfmpi_set_needs_all.argtypes = [ctypes.c_char_p]
        lib.tfmpi_transport.restype = ctypes.c_char_p
        lib.tfmpi_stats_report.restype = ctypes.c_char_p
        lib.tfmpi_leave.argtypes = [ctypes.c_char_p, ctypes.c_double]
        lib.tfmpi_limit_end.argtypes = [ctypes.c_int32, ctypes.c_double, ctypes.c_char_p]
        lib.tfmpi_begin.restype = ctypes.c_void_p
        lib.tfmpi_begin.argtypes = [
            ctypes.c_char_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32,
            ctypes.POINTER(ctypes.c_int64), ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p,
            ctypes.c_int32,
        ]  # fmt: skip
        lib.tfmpi_wait.argtypes = [ctypes.c_void_p, ctypes.c_double]
        lib.tfmpi_gathered.restype = ctypes.c_void_p
        lib.tfmpi_gathered.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_int64)]
        lib.tfmpi_end.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        lib.tfmpi_bench.argtypes = [
            ctypes.POINTER(BenchCase), ctypes.POINTER(ctypes.c_double),
            ctypes.POINTER(ctypes.c_int32), ctypes.c_char_p,
        ]  # fmt: skip
        lib.tfmpi_post.argtypes = [ctypes.c_char_p]
        lib.tfmpi_posted.argtypes = [ctypes.c_char_p]
        lib.tfmpi_posted.restype = ctypes.c_int64
        lib.tfmpi_posted_value.argtypes = [
            ctypes.c_char_p, ctypes.c_int64, ctypes.c_char_p, ctypes.c_int32
        ]  # fmt: skip
        lib.tfmpi_set_doing.argtypes = [ctypes.c_char_p]
        lib.tfmpi_steps.restype = ctypes.POINTER(ctypes.c_int64)
        lib.tfmpi_set_several_threads.argtypes = [ctypes.c_int32]
        lib.tfmpi_posts_heard.restype = ctypes.c_uint64
        lib.tfmpi_missed.restype = ctypes.c_uint64
        lib.tfmpi_wait_for_file.argtypes = [
            ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int32, ctypes.c_char_p
        ]  # fmt: skip
        lib.tfmpi_declare_variable.argtypes = [ctypes.c_char_p] * 3
        lib.tfmpi_variable_name.argtypes = [ctypes.c_char_p] * 4 + [ctypes.c_int32]
        lib.tfmpi_mark_synchronized.argtypes = [ctypes.c_char_p] * 3
        lib.tfmpi_set_thread_scope.argtypes = [ctypes.c_char_p]
        lib.tfmpi_set_scope.argtypes = [ctypes.c_int64, ctypes.c_char_p]
        lib.tfmpi_share_fetches.argtypes = [ctypes.c_int32]
        lib.tfmpi_is_lone_variable.argtypes = [ctypes.c_void_p]
        lib.tfmpi_fingerprint.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        lib.tfmpi_fingerprint.restype = ctypes.c_uint64
        lib.tfmpi_set_averaged.argtypes = [ctypes.c_int32]
        lib.tfmpi_leave_averages_to_script.restype = None
        lib.tfmpi_apply_op.restype = ctypes.c_char_p
        _lib = lib
    return _lib


def error_buffer(size: int = _ERROR_BYTES) -> Any:
    """A buffer for a call's `error` argument, or for other text."""
    return ctypes.create_string_buffer(size)


def error_text(buffer: Any) -> str:
    """The text that a call wrote into its buffer."""
    return str(buffer.value.decode("utf-8", "replace"))


def start_waits_for() -> str:
    """While tfmpi_start runs: which ranks it waits for, and for what; "" if it does not wait."""
    buffer = error_buffer()
    load().tfmpi_start_waits_for(buffer, len(buffer))
    return error_text(buffer)


def gpus() -> list[tuple[str, str]]:
    """(PCI address, name) of each GPU that this process sees, in order."""
    buffer = error_buffer(1 << 14)
    load().tfmpi_gpus(buffer, len(buffer))
    lines = error_text(buffer).splitlines()
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


def joined() -> set[int]:
    """The ranks that have joined, as far as this rank knows."""
    buffer = error_buffer(16)
    found = set()
    for number in range(load().tfmpi_posted(_JOINED)):
        load().tfmpi_posted_value(_JOINED, number, buffer, len(buffer))
        found.add(int(error_text(buffer)))
    return found


def op_sizes() -> tuple[int, int]:
    """In bytes: the size at which an average of several tensors in a graph is closed, and the size
    from which a gradient gets an average of its own (core/base/sizes.h)."""
    out = (ctypes.c_int64 * 2)()
    load().tfmpi_op_sizes(out)
    return out[0], out[1]


def topology() -> tuple[int, int, int, int, int]:
    """(rank, size, local_rank, local_size, nodes) of the running engine."""
    rank, size, local_rank, local_size, nodes, _ = _topology()
    return rank, size, local_rank, local_size, nodes


def node_cores() -> int:
    """The number of cores that all ranks of this node may use, by their masks and cgroups."""
    return int(_topology()[5])


def quota_cores() -> int:
    """The number of cores that this process's cgroups allow; a large number without a limit."""
    return int(load().tfmpi_quota_cores())


def _topology() -> ctypes.Array[ctypes.c_int32]:
    out = (ctypes.c_int32 * 6)()
    load().tfmpi_topology(out)
    return out


def stats() -> dict[str, int]:
    """Counts since start, by name; see tfmpi_stats."""
    names = (
        "completed", "collectives", "bytes", "registrations", "decorated", "gradients", "applied",
        "updated",
    )  # fmt: skip
    out = (ctypes.c_uint64 * len(names))()
    load().tfmpi_stats(out)
    return dict(zip(names, out, strict=True))


def record_input(seconds: float) -> None:
    """Records in the timeline, if there is one, a wait for input that ends now."""
    load().tfmpi_record_input(ctypes.c_double(seconds))


def seed_xla(first: int) -> None:
    """From now on compiled functions use seeds that follow from `first`, which is below 2**32; 0:
    TensorFlow's own seeds."""
    load().tfmpi_seed_xla(ctypes.c_uint32(first))


def variable_name(container: str, name: str) -> str:
    """Declares an eager variable; returns its name, which is the same on every rank."""
    buffer = error_buffer()
    args = (container.encode(), name.encode(), b"", buffer, _ERROR_BYTES)
    load().tfmpi_variable_name(*args)
    return error_text(buffer)


def apply_ops() -> dict[str, tuple[str, bool]]:
    """The optimizer ops: name -> (gradient input, sparse)."""
    table: dict[str, tuple[str, bool]] = {}
    gradient, sparse = ctypes.c_char_p(), ctypes.c_int32()
    index = 0
    while True:
        name = load().tfmpi_apply_op(index, ctypes.byref(gradient), ctypes.byref(sparse))
        if name is None:
            return table
        assert gradient.value is not None
        table[name.decode()] = (gradient.value.decode(), bool(sparse.value))
        index += 1
