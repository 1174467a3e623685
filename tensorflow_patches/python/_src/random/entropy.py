"""Entropy that all ranks share, for draws that the script does not seed.

Where one process asks the operating system for random bits, each rank computes them from a key that
rank 0 has drawn, and from the place of the call: the functions on the stack, and the number of
earlier calls from that place. So a draw on one rank only does not change other draws.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import numbers
import os
import sys
import threading
import time
from types import FrameType
from typing import Any

from tensorflow.mpi import config
from tensorflow.mpi._src.lifecycle import engine
from tensorflow.mpi._src.runtime import c_api, group, threads

_SECONDS = 10  # a seed this close to the current time was taken from it
_DEEPEST = 64  # how many of the innermost frames of a stack count

_key = b""  # empty: use the operating system's entropy, as one process does
_calls: collections.Counter[tuple[str, bytes]] = collections.Counter()
_lock = threading.Lock()
_local = threading.local()  # .of: what this thread draws for, which separates its draws


def wanted() -> bool:
    """Whether the ranks run one program, and so must draw the same numbers."""
    return group.size > 1 and config.get("TF_MPI_SHARD") != "off"


def share(key: bytes) -> None:
    """From here on this process draws by `key`; a forked child, which is not a rank, does not."""
    global _key
    _key = key
    c_api.seed_xla(derive(32, "xla", b"", 0))
    os.register_at_fork(after_in_child=_forget)
    engine.when_left_to_script(_forget)


def _forget() -> None:
    """Returns to the operating system's entropy: in a child, or if the script divides its data."""
    global _key
    _key = b""
    c_api.seed_xla(0)


def is_shared() -> bool:
    return bool(_key)


def bits(number: int, kind: str, place: bytes) -> int:
    """`number` bits, new ones in each call; `kind` and `place` say for what and where."""
    place += getattr(_local, "of", None) or b""
    with _lock:
        count = _calls[kind, place]
        _calls[kind, place] += 1
    return derive(number, kind, place, count)


def drawing_for(what: str) -> contextlib.AbstractContextManager[None]:
    """Inside, this thread draws for `what`, separately from other draws from the same places."""
    return threads.inside(_local, of=what.encode())


def derive(number: int, kind: str, place: bytes, count: int) -> int:
    """`number` bits, the same on all ranks for the same arguments; without a shared key, the
    operating system's."""
    if not _key:
        return int.from_bytes(os.urandom((number + 7) // 8), "little") >> (-number % 8)
    text = b"%s %s %d" % (kind.encode(), place, count)
    stream = b"".join(
        hashlib.blake2b(text + b" %d" % block, key=_key).digest()
        for block in range((number + 511) // 512)
    )
    return int.from_bytes(stream, "little") & ((1 << number) - 1)


def is_clock(seed: Any) -> bool:
    """Whether a seed is the current time, in any unit: the script wants new draws in each run."""
    if isinstance(seed, bool) or not isinstance(seed, numbers.Real):
        return False
    try:
        value, now = float(seed), time.time()
    except OverflowError:  # an int of over 1024 bits
        return False
    if any(abs(value / unit - now) < _SECONDS for unit in (1, 1e3, 1e6, 1e9)):
        return True
    behind = (now * 1e3 - value) % 2**32  # milliseconds, as np.random.seed takes them
    return 2**20 < value < 2**32 and min(behind, 2**32 - behind) < _SECONDS * 1e3


def instead_of_clock(seed: Any, packages: tuple[str, ...]) -> Any:
    """`seed`; if it is the time, a value that is the same on all ranks."""
    if not _key or not is_clock(seed):
        return seed
    return bits(31, "clock", place_of(caller(packages)))


def place_of(frame: FrameType | None, package: str = "") -> bytes:
    """A digest of the stack from `frame` on, equal on ranks at the same place of the program.

    It covers functions and lines; files may have temporary names. With `package`, the first
    function outside of that package is the last that counts.
    """
    digest = hashlib.blake2b(digest_size=8)
    for _ in range(_DEEPEST):
        if frame is None:
            break
        digest.update(f"{frame.f_code.co_name} {frame.f_lineno};".encode())
        if package and package_of(frame) != package:
            break
        frame = frame.f_back
    return digest.digest()


def package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def caller(packages: tuple[str, ...]) -> FrameType | None:
    """The innermost frame of the caller's stack whose module is in none of `packages`."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if package_of(frame) not in packages:
            return frame
        frame = frame.f_back
    return None
