"""The divergence check: what ranks train together must be the same on all of them, to the bit.

Before every K-th step of a set of variables each rank hashes them: all, if the user has said how
often (TF_MPI_CHECK), else as many bytes as cost little, the next ones at the next check. The hashes
travel in one allgather beside the step; every rank looks at them before its next one. By then all
ranks have begun that exchange, as all have taken the step after it, so nobody waits for long, and
all ranks come to the same end at the same step.

Not compared: what several threads train at a time, as it has no order.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tensorflow.mpi import config
from tensorflow.mpi._src.messaging import collectives, control_plane
from tensorflow.mpi._src.runtime import c_api, group

_AUTO = 100  # steps
_SHARE = 0.003  # of the time since the last check
_MIN_BYTES, _FIRST_BYTES = 2**20, 2**28
_BLOCK = 2**16  # bytes in which a difference is looked for
_HEADER = 5  # a rank's row before its hashes: see _begin

# The values of a set's variables, in its order, as arrays that share their memory if they can.
Read = Callable[[], Sequence[Any]]

_lock = threading.Lock()
_sets: dict[tuple[str, ...], Replicas] = {}  # guarded by _lock
_caught_up = 0  # how often the script has made variables alike


@dataclasses.dataclass
class Replicas:
    """Variables that are trained together, on every rank: their names there, in order."""

    names: tuple[str, ...]
    thread: int  # that took the first step
    steps: int = 0  # begun, since they were made alike last
    alike: int = 0  # _caught_up, then
    other_threads: bool = False  # have taken steps here
    concurrent: bool = False  # or on another rank: nothing is compared any more
    agreed: int = 0  # the last check that found no difference, as a step
    start: int = 0  # of the bytes that the next check hashes, of all of them together
    limit: int = _FIRST_BYTES  # how many, unless all are
    last: float = 0.0  # when the last check began
    under_way: collectives.Gathering | None = None
    checked: int = 0  # the step before which it began
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)


def mark_synchronized() -> None:
    """The script has made variables alike, by tf.mpi.broadcast_variables."""
    global _caught_up
    c_api.load().tfmpi_caught_up()
    _caught_up += 1


def of(names: Sequence[str]) -> Replicas | None:
    """The set of these variables; None if nothing is to be compared."""
    if _every() == 0 or group.size == 1 or not names:
        return None
    key = tuple(sorted(set(names)))
    with _lock:
        if key not in _sets:
            _sets[key] = Replicas(key, threading.get_ident(), last=time.perf_counter())
        return _sets[key]


def before_step(replicas: Replicas | None, read: Read) -> None:
    """A step is about to train these variables, on every rank.

    Raises RuntimeError, on all ranks, if an earlier check found a difference.
    """
    if replicas is None or replicas.concurrent:
        return
    with replicas.lock:
        replicas.steps += 1
        replicas.other_threads |= replicas.thread != threading.get_ident()
        if replicas.under_way is not None:
            _end(replicas, read)
        if replicas.alike != _caught_up:  # before that, a rank may have taken more steps
            replicas.alike, replicas.steps, replicas.start = _caught_up, 1, 0
            replicas.limit = _FIRST_BYTES
        if replicas.steps % _every() == 0 and not replicas.concurrent:
            _begin(replicas, read)


@functools.cache
def _every() -> int:
    """Steps from check to check; 0: none."""
    wish = config.get("TF_MPI_CHECK")
    return {"off": 0, "auto": _AUTO}.get(wish, wish)


def _is_limited() -> bool:
    """Whether a check compares a part, by what it costs."""
    return bool(config.get("TF_MPI_CHECK") == "auto")


def _begin(replicas: Replicas, read: Read) -> None:
    begun = time.perf_counter()
    arrays = read()
    limit = replicas.limit if _is_limited() else sum(array.nbytes for array in arrays)
    hashes = _hashes(arrays, replicas.start, limit)
    ended = time.perf_counter()
    row = [
        group.rank,
        replicas.other_threads,
        int((begun - replicas.last) * 1e9),
        int((ended - begun) * 1e9),
        sum(size for _, size in hashes),
        *(value for value, _ in hashes),
    ]
    replicas.last, replicas.checked = begun, replicas.steps
    label = (
        f"replicas {control_plane.text_digest(replicas.names)} {replicas.alike} {replicas.steps}"
    )
    replicas.under_way = collectives.Gathering(np.array([row], np.uint64), label)


def _hashes(arrays: Sequence[Any], start: int, limit: int) -> list[tuple[int, int]]:
    """By array, the hash of its part of the bytes [start, start + limit) of all, and its size."""
    found, before = [], 0
    for array in arrays:
        begin = min(max(start - before, 0), array.nbytes)
        end = min(max(start + limit - before, 0), array.nbytes)
        found.append((_hash(array, begin, end), end - begin))
        before += array.nbytes
    return found


def _hash(array: Any, begin: int, end: int) -> int:
    array = np.ascontiguousarray(array)
    return int(c_api.load().tfmpi_fingerprint(array.ctypes.data + begin, end - begin))


def _end(replicas: Replicas, read: Read) -> None:
    assert replicas.under_way is not None
    gathered = replicas.under_way.result()
    replicas.under_way = None
    if gathered[:, 1].any():
        replicas.concurrent = True
        return
    hashes = gathered[:, _HEADER:]
    for place in range(hashes.shape[1]):
        if (hashes[:, place] != hashes[0, place]).any():
            raise RuntimeError(_message(replicas, place, gathered, read))
    _, _, elapsed, spent, size = (int(number) for number in gathered[0, :_HEADER])
    replicas.agreed = replicas.checked
    if not _is_limited():
        return
    replicas.start += size
    arrays = read()
    total = sum(array.nbytes for array in arrays)
    if replicas.start >= total:
        replicas.start = 0
    # Alike on all ranks, as it comes of one rank's times. Speeds vary, so not at once.
    wanted = size * _SHARE * elapsed / max(1, spent)
    replicas.limit = int(min(max(wanted, _MIN_BYTES, size / 4), max(size * 4, _MIN_BYTES)))


def _message(replicas: Replicas, place: int, gathered: Any, read: Read) -> str:
    ranks = [int(rank) for rank in gathered[:, 0]]
    by_hash = collections.defaultdict(list)
    for rank, value in zip(ranks, gathered[:, _HEADER + place]):
        by_hash[int(value)].append(rank)
    groups = sorted(by_hash.values(), key=lambda group: (-len(group), group))
    most, odd = groups[0], groups[-1]
    name = replicas.names[place]
    if len(most) == len(odd):
        who = f"rank {odd[0]}/{group.size} (or rank {most[0]}: no majority tells)"
    else:
        who = f"rank {odd[0]}/{group.size}"
    where = _where(f"where {name} {replicas.steps}", read()[place], most[0], odd[0])
    return (
        f"{who}: the variable '{name}' is not what it is on rank {', '.join(map(str, most))}"
        f"{where}. The ranks last agreed on it before step {replicas.agreed} of these variables, "
        f"and no longer before step {replicas.checked}. What ranks train together is equal to the "
        "bit, unless one of them assigns to it on its own, or its memory or a core is faulty, or "
        "its processor rounds otherwise. Change variables on all ranks alike, or try without that "
        "machine (python -m tensorflow.mpi doctor); TF_MPI_CHECK=off trains on without looking"
    )


def _where(label: str, array: Any, one: int, other: int) -> str:
    """A meeting of all ranks: the first element that differs between two of them, for people."""
    flat = np.ascontiguousarray(array).reshape(-1)
    data = flat.view(np.uint8)
    starts = range(0, data.nbytes, _BLOCK)
    blocks = [_hash(data, start, min(start + _BLOCK, data.nbytes)) for start in starts]
    everyone = control_plane.headers(label, [group.rank, blocks])
    theirs = dict(map(tuple, everyone))
    block = next((i for i, (a, b) in enumerate(zip(theirs[one], theirs[other])) if a != b), None)
    if block is None:
        return ""
    mine = flat[block * _BLOCK // flat.itemsize : (block + 1) * _BLOCK // flat.itemsize]
    found = dict(control_plane.gather(f"{label} block", group.rank, [mine.view(np.uint8)]))
    a, b = (found[rank][0].view(flat.dtype) for rank in (one, other))
    bits = (a.view(np.uint8) != b.view(np.uint8)).reshape(len(a), -1).any(axis=1)
    first = int(np.argmax(bits))
    index = np.unravel_index(block * _BLOCK // flat.itemsize + first, np.shape(array))
    element = f"element {[int(i) for i in index]}" if np.ndim(array) else "it"
    return f": {element} is {b[first]!s} there, and {a[first]!s} on rank {one}"
