"""The speed of an average on a GPU, compared with copies to the host: `mpirun … speed.py`.

Rank 0 prints a table row for each size. The copies are made by one rank, through pinned memory, in
both directions at the same time: they bound the speed of a staged average.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import mpi
from tensorflow.mpi._src.average import averaging

SIZES_MB = (1, 16, 256)
ROUNDS = 8


class Copies:
    """Copies with the CUDA driver, on two streams."""

    def __init__(self, size: int) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.size = ctypes.c_size_t(size)
        context = ctypes.c_void_p()
        self._check(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
        self._check(self.cuda.cuCtxSetCurrent(context))
        self.streams = [ctypes.c_void_p(), ctypes.c_void_p()]
        self.host = [ctypes.c_void_p(), ctypes.c_void_p()]
        self.gpu = [ctypes.c_uint64(), ctypes.c_uint64()]
        for way in (0, 1):
            self._check(self.cuda.cuStreamCreate(ctypes.byref(self.streams[way]), 1))
            self._check(self.cuda.cuMemHostAlloc(ctypes.byref(self.host[way]), self.size, 0))
            self._check(self.cuda.cuMemAlloc_v2(ctypes.byref(self.gpu[way]), self.size))

    def run(self) -> None:
        there, back = self.streams
        self._check(self.cuda.cuMemcpyDtoHAsync_v2(self.host[0], self.gpu[0], self.size, there))
        self._check(self.cuda.cuMemcpyHtoDAsync_v2(self.gpu[1], self.host[1], self.size, back))
        for stream in self.streams:
            self._check(self.cuda.cuStreamSynchronize(stream))

    def _check(self, error: int) -> None:
        if error:
            raise RuntimeError(f"CUDA driver: error {error}")


def _median(work: Callable[[], Any]) -> float:
    work()
    seconds = []
    for _ in range(ROUNDS):
        mpi.barrier()
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return float(np.median(seconds))


def main() -> None:
    for size in SIZES_MB:
        count = (size << 20) // 4
        with tf.device("GPU:0"):
            tensor = tf.fill([count], float(mpi.rank() + 1))

        @tf.function
        def step(tensor: Any, name: str = f"{size} MiB") -> Any:
            with tf.device("GPU:0"):
                return averaging.average([tensor], [name], "speed")[0]

        def average(step: Any = step, tensor: Any = tensor) -> float:
            return float(step(tensor)[-1])  # waits for the GPU

        expected = (mpi.size() + 1) / 2
        assert abs(average() - expected) < 1e-6, (average(), expected)
        seconds = _median(average)
        copies = Copies(size << 20)
        limit = _median(copies.run if mpi.rank() == 0 else lambda: None)
        if mpi.rank() == 0:
            print(
                f"| {size} MiB | {seconds * 1e3:.2f} ms | {size / 1024 / seconds:.1f} GiB/s "
                f"| {limit * 1e3:.2f} ms |",
                flush=True,
            )


if __name__ == "__main__":
    main()
