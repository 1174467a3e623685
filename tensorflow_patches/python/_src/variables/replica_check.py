"""The divergence check: variables that ranks train together must be bitwise equal on all ranks.

Before every K-th step of a set of variables each rank hashes them: all of them if the user has set
the interval (TF_MPI_CHECK), otherwise as many bytes as take 0.3 % of the time; the next check
continues with the bytes that follow. The hashes are exchanged by one allgather during the step, and
every rank compares them before its next step. The wait is short, because each rank has started the
exchange before the step that all have just taken together. All ranks reach the same conclusion at
the same step.

Variables that several threads train at the same time are not compared, because their steps have no
defined order.
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
from tensorflow.mpi._src.presence import peers
from tensorflow.mpi._src.runtime import c_api, group

_AUTO_INTERVAL = 100  # steps
_TIME_FRACTION = 0.003  # of the time between two checks, which hashing may take
_MIN_BYTES, _FIRST_BYTES = 2**20, 2**28  # per check
_BLOCK = 2**16  # bytes per hash when locating a difference
_HEADER = 5  # numbers before the hashes in a rank's row: see _begin

# Returns the values of a set's variables, in its order, not copied if possible.
Read = Callable[[], Sequence[Any]]

_lock = threading.Lock()
_sets: dict[tuple[str, ...], Replicas] = {}  # guarded by _lock
_script_syncs = 0  # how often the script has synchronized variables


@dataclasses.dataclass
class Replicas:
    """Variables that are trained together on every rank, by their common names, in order."""

    names: tuple[str, ...]
    thread: int  # the thread that took the first step
    steps: int = 0  # steps begun since the script last synchronized them
    script_syncs: int = 0  # _script_syncs at that time
    other_threads: bool = False  # whether other threads of this rank have taken steps
    concurrent: bool = False  # whether any rank's other threads have; then nothing is compared
    agreed: int = 0  # the step of the last check that found no difference
    start: int = 0  # the offset at which the next check begins, in bytes over all variables
    limit: int = _FIRST_BYTES  # how many bytes it hashes if _is_limited()
    last: float = 0.0  # when the last check began
    under_way: collectives.Gathering | None = None
    checked: int = 0  # the step before which `under_way` began
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)


def mark_synchronized() -> None:
    """Called when the script has synchronized variables by tf.mpi.broadcast_variables."""
    global _script_syncs
    c_api.load().tfmpi_caught_up()
    _script_syncs += 1


def replicas_of(names: Sequence[str]) -> Replicas | None:
    """The Replicas of these variables; None if they are not compared."""
    if _check_interval() == 0 or group.size == 1 or not names:
        return None
    key = tuple(sorted(set(names)))
    with _lock:
        if key not in _sets:
            _sets[key] = Replicas(key, threading.get_ident(), last=time.perf_counter())
        return _sets[key]


def before_step(replicas: Replicas | None, read: Read) -> None:
    """Called on every rank when a step is about to train these variables.

    Raises RuntimeError, on all ranks, if the previous check has found a difference.
    """
    if replicas is None or replicas.concurrent:
        return
    with replicas.lock:
        replicas.steps += 1
        replicas.other_threads |= replicas.thread != threading.get_ident()
        if replicas.under_way is not None:
            _end(replicas, read)
        if replicas.script_syncs != _script_syncs:
            # Before the script synchronized them, ranks may have taken different numbers of steps.
            replicas.script_syncs, replicas.steps, replicas.start = _script_syncs, 1, 0
            replicas.agreed = 0
            replicas.limit = _FIRST_BYTES
        if replicas.steps % _check_interval() == 0 and not replicas.concurrent:
            _begin(replicas, read)


@functools.cache
def _check_interval() -> int:
    """The number of steps between checks; 0: no checks."""
    setting = config.get("TF_MPI_CHECK")
    return {"off": 0, "auto": _AUTO_INTERVAL}.get(setting, setting)


def _is_limited() -> bool:
    """Whether a check compares only a part of the variables, to limit its cost."""
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
    digest = control_plane.text_digest(replicas.names)
    label = f"replicas {digest} {replicas.script_syncs} {replicas.steps}"
    replicas.under_way = collectives.Gathering(np.array([row], np.uint64), label)


def _hashes(arrays: Sequence[Any], start: int, limit: int) -> list[tuple[int, int]]:
    """For each array, the hash and size of its bytes that are in [start, start + limit) of all
    arrays, one after another."""
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
    for index in range(hashes.shape[1]):
        if (hashes[:, index] != hashes[0, index]).any():
            raise RuntimeError(_message(replicas, index, gathered, read))
    _, _, elapsed, spent, size = (int(number) for number in gathered[0, :_HEADER])
    replicas.agreed = replicas.checked
    if not _is_limited():
        return
    replicas.start += size
    arrays = read()
    total = sum(array.nbytes for array in arrays)
    if replicas.start >= total:
        replicas.start = 0
    # The same on all ranks, because it uses rank 0's times. Changes slowly, because times vary.
    wanted = size * _TIME_FRACTION * elapsed / max(1, spent)
    replicas.limit = int(min(max(wanted, _MIN_BYTES, size / 4), max(size * 4, _MIN_BYTES)))


def _message(replicas: Replicas, variable: int, gathered: Any, read: Read) -> str:
    """The error for the variable at this index. Collective."""
    ranks = [int(rank) for rank in gathered[:, 0]]
    by_hash = collections.defaultdict(list)
    for rank, value in zip(ranks, gathered[:, _HEADER + variable]):
        by_hash[int(value)].append(rank)
    groups = sorted(by_hash.values(), key=lambda equal: (-len(equal), equal))
    most, fewest = groups[0], groups[-1]
    name = replicas.names[variable]
    if len(most) == len(fewest):
        who = f"rank {fewest[0]}/{group.size} (or rank {most[0]}: there is no majority)"
    else:
        who = f"rank {fewest[0]}/{group.size}"
    values = read()[variable]
    where = _first_difference(f"where {name} {replicas.steps}", values, most[0], fewest[0])
    return (
        f"{who}: the variable '{name}' differs from {peers.ranks(most)}{where}. The checks up to "
        f"step {replicas.agreed} of these variables found no difference, the one before step "
        f"{replicas.checked} did. Variables that ranks train together are bitwise equal unless one "
        "rank assigns to them on its own, its memory or a core is faulty, or its processor rounds "
        "differently. Change variables on all ranks in the same way, or try without that machine "
        "(python -m tensorflow.mpi doctor); TF_MPI_CHECK=off disables this check"
    )


def _first_difference(label: str, array: Any, one: int, other: int) -> str:
    """The first element that differs between two ranks, as text; all ranks must call this."""
    flat = np.ascontiguousarray(array).reshape(-1)
    data = flat.view(np.uint8)
    starts = range(0, data.nbytes, _BLOCK)
    blocks = [_hash(data, start, min(start + _BLOCK, data.nbytes)) for start in starts]
    hashes = dict(map(tuple, control_plane.headers(label, [group.rank, blocks])))
    block = next((i for i, (a, b) in enumerate(zip(hashes[one], hashes[other])) if a != b), None)
    if block is None:
        return ""
    begin = block * _BLOCK // flat.itemsize
    mine = flat[begin : (block + 1) * _BLOCK // flat.itemsize]
    found = dict(control_plane.gather(f"{label} block", group.rank, [mine.view(np.uint8)]))
    a, b = (found[rank][0].view(flat.dtype) for rank in (one, other))
    differs = (a.view(np.uint8) != b.view(np.uint8)).reshape(len(a), -1).any(axis=1)
    first = int(np.argmax(differs))
    index = np.unravel_index(begin + first, np.shape(array))
    element = f"element {[int(i) for i in index]}" if np.ndim(array) else "it"
    return f": {element} is {b[first]!s} on rank {other}, and {a[first]!s} on rank {one}"
