"""Entropy that all ranks share, for what the script does not seed.

Where one process would ask the operating system for random bits, each rank computes them from one
key, which rank 0 has drawn, and from the place of the call: the functions on the stack, and how
often that place has asked before. So a draw that one rank alone makes moves no other rank's draws.
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
from tensorflow.mpi._src.runtime import group, threads

_SECONDS = 10
_DEEPEST = 64  # frames of a stack, the innermost

_key = b""  # empty: the operating system's, as in one process
_calls: collections.Counter[tuple[str, bytes]] = collections.Counter()
_lock = threading.Lock()
_local = threading.local()  # .of: what this thread draws for; other draws than for anything else


def wanted() -> bool:
    """Whether ranks run one program, so that they must draw alike."""
    return group.size > 1 and config.get("TF_MPI_SHARD") != "off"


def share(key: bytes) -> None:
    """From here on this process draws by `key`. A forked child, which is no rank, does not."""
    global _key
    _key = key
    os.register_at_fork(after_in_child=_forget)
    engine.when_left_to_script(_forget)


def _forget() -> None:
    """Also where the script averages itself: then each rank draws its own."""
    global _key
    _key = b""


def is_shared() -> bool:
    return bool(_key)


def bits(number: int, kind: str, place: bytes) -> int:
    """`number` bits, others at each call; `kind` and `place` say what asks for them, and where."""
    place += getattr(_local, "of", None) or b""
    with _lock:
        count = _calls[kind, place]
        _calls[kind, place] += 1
    return derived(number, kind, place, count)


def drawing_for(what: str) -> contextlib.AbstractContextManager[None]:
    """Draws of this thread are `what`'s: other ones than of other things, from the same places."""
    return threads.inside(_local, of=what.encode())


def derived(number: int, kind: str, place: bytes, count: int) -> int:
    """`number` bits, the same for the same arguments."""
    if not _key:
        return int.from_bytes(os.urandom((number + 7) // 8), "little") >> (-number % 8)
    text = b"%s %s %d" % (kind.encode(), place, count)
    stream = b"".join(
        hashlib.blake2b(text + b" %d" % block, key=_key).digest()
        for block in range((number + 511) // 512)
    )
    return int.from_bytes(stream, "little") & ((1 << number) - 1)


def is_clock(seed: Any) -> bool:
    """Whether a seed is the time of now, in any unit: a script's way of drawing without a seed."""
    if isinstance(seed, bool) or not isinstance(seed, numbers.Real):
        return False
    value, now = float(seed), time.time()
    if any(abs(value / unit - now) < _SECONDS for unit in (1, 1e3, 1e6, 1e9)):
        return True
    behind = (now * 1e3 - value) % 2**32  # milliseconds, as np.random.seed takes them
    return 2**20 < value < 2**32 and min(behind, 2**32 - behind) < _SECONDS * 1e3


def instead_of_clock(seed: Any, packages: tuple[str, ...]) -> Any:
    """`seed`, or what all ranks take in its place if it is the clock's."""
    if not _key or not is_clock(seed):
        return seed
    return bits(31, "clock", place_of(caller(packages)))


def place_of(frame: FrameType | None, package: str = "") -> bytes:
    """The functions on the stack from `frame` on, and their lines: the same on ranks that run the
    same program.

    Without the names of files, which may be temporary ones. With `package`: no further than to the
    first function outside of it.
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
    """The innermost frame whose module is in none of `packages`, seen from who calls this."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if package_of(frame) not in packages:
            return frame
        frame = frame.f_back
    return None
