"""The hardware and software of this node, and how fast this process is there, for the doctor."""

from __future__ import annotations

import glob
import os
import platform
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from tensorflow.mpi import _build_info, config
from tensorflow.mpi._src.mpi import library as mpi_library

_SHM = "/dev/shm"
_NEEDED_SHM = 64 << 20  # bytes, enough for about 100 ranks (core/base/sizes.h)
_BANDWIDTH_BYTES = 64 << 20  # larger than the caches
_MEASURED_SECONDS = 0.5
_PARTS = 5  # of that time; the best one counts
_TURNS = 2  # measurements of each figure: a disturbance of the first may be over in the second


def facts() -> dict[str, Any]:
    """Facts about this node, of JSON types. An unknown number is 0."""
    memory = _memory()
    return {
        "node": config.node_name(),
        "wheel": f"{_build_info.VERSION} {_build_info.BUILD_ID}",
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "node_cores": os.cpu_count() or 1,
        "load": round(os.getloadavg()[0], 1),
        "memory": memory.get("MemTotal", 0),
        "memory_free": memory.get("MemAvailable", 0),
        "shm_free": _shm_free(),
        "shm_fault": _shm_fault(),
        "mpi": mpi_library.report(),
    }


def wheel() -> str:
    """What the wheel was built for, and the GPUs on this node that it could use."""
    if _build_info.VERSION.endswith(".cpu"):
        return "tensorflow, without GPUs"
    return f"tensorflow, for GPUs; NVIDIA GPUs on this node: {_gpus() or 'none'}"


def figures() -> dict[str, float]:
    """How fast this process is while the others on its node measure, too; higher is better."""
    source = np.ones(_BANDWIDTH_BYTES // 8)
    target = np.empty_like(source)
    small = np.linspace(0.1, 1.0, 4096)
    out = np.empty_like(small)
    copied = computed = 0.0
    for _ in range(_TURNS):
        copied = max(copied, _rate(lambda: np.copyto(target, source)) * 2 * source.nbytes)
        computed = max(computed, _rate(lambda: np.exp(small, out=out)) * small.size)
    return {"memory GB/s": copied / 1e9, "exp M/s": computed / 1e6}


def _rate(work: Callable[[], Any]) -> float:
    """Calls per second in the best part of the time, because other processes may use the core."""
    work()
    best = 0.0
    for _ in range(_PARTS):
        calls, begin = 0, time.perf_counter()
        while (seconds := time.perf_counter() - begin) < _MEASURED_SECONDS / _PARTS:
            work()
            calls += 1
        best = max(best, calls / seconds)
    return best


def _memory() -> dict[str, int]:
    """Bytes, by the kernel's names."""
    with open("/proc/meminfo", encoding="utf-8") as file:
        pairs = (line.split() for line in file)
        return {words[0].rstrip(":"): int(words[1]) << 10 for words in pairs}


def _processor() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _gpus() -> int:
    """The number of GPUs that the driver's module lists; does not load CUDA."""
    try:
        return len(os.listdir("/proc/driver/nvidia/gpus"))
    except OSError:
        return len(glob.glob("/dev/nvidia[0-9]*"))


def _shm_free() -> int:
    try:
        status = os.statvfs(_SHM)
    except OSError:
        return 0
    return status.f_bavail * status.f_frsize


def _shm_fault() -> str:
    """Why many ranks of this node could not share memory; "" if they can."""
    free = _shm_free()
    if not os.path.isdir(_SHM):
        return f"{_SHM} does not exist"
    if free < _NEEDED_SHM:
        return f"{_SHM} has {free >> 20} MB free, but up to {_NEEDED_SHM >> 20} MB is needed"
    if not os.access(_SHM, os.W_OK):
        return f"{_SHM} is not writable"
    return ""
