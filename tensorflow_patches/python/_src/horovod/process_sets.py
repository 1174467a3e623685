"""Process sets: subsets of the ranks that have their own collectives.

Every rank registers the same sets in the same order; only a set's members call its collectives.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tensorflow.mpi._src.messaging import control_plane
from tensorflow.mpi._src.runtime import group

_by_id: dict[int, ProcessSet] = {}
_next_id = 1
_free_ids: list[int] = []  # of removed sets; reused first
_dynamic = False  # whether sets may be added and removed after hvd.init()
_calls = 0  # of _agree, so that each exchange has its own name


class ProcessSet:
    """A set of rank numbers. `process_set_id` is None until the set is registered."""

    def __init__(self, ranks_or_comm: Any) -> None:
        if not isinstance(ranks_or_comm, Iterable):
            raise NotImplementedError(
                "ProcessSet does not accept an mpi4py communicator; pass the list of its ranks"
            )
        self.ranks: list[int] | None = sorted(ranks_or_comm)
        if any(not isinstance(rank, int) for rank in self.ranks):
            raise ValueError("ProcessSet should be initialized with a list of process ranks")
        self.mpi_comm = None
        self.process_set_id: int | None = None

    def size(self) -> int | None:
        return None if self.process_set_id is None else len(members(self))

    def rank(self) -> int | None:
        """This process's index in the set. Raises ValueError if it is not a member."""
        if self.process_set_id is None:
            return None
        if group.group_rank not in members(self):
            raise ValueError("Process is not part of provided process set.")
        return members(self).index(group.group_rank)

    def included(self) -> bool | None:
        return None if self.ranks is None else group.group_rank in members(self)

    def __str__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, "
            f"mpi_comm={self.mpi_comm})"
        )

    def _invalidate(self) -> None:
        self.process_set_id = None


global_process_set = ProcessSet([])
global_process_set.process_set_id = 0


def members(process_set: ProcessSet) -> list[int]:
    """The set's ranks, in order. Raises ValueError if the set is not registered."""
    if process_set.process_set_id == 0:
        return list(range(group.group_size))
    if process_set.process_set_id not in _by_id:
        raise ValueError("Process set does not exist or has not been registered.")
    return _by_id[process_set.process_set_id].ranks or []


def by_id(process_set_id: int) -> ProcessSet:
    """The set with this number. Raises KeyError if there is none."""
    return global_process_set if process_set_id == 0 else _by_id[process_set_id]


def start(dynamic: bool) -> None:
    """Called by hvd.init(): the global set becomes all ranks."""
    global _dynamic
    _dynamic = dynamic
    global_process_set.ranks = list(range(group.group_size))


def forget() -> None:
    """Called by hvd.shutdown(): unregisters all sets."""
    global _next_id
    for one in _by_id.values():
        one._invalidate()
    _by_id.clear()
    _free_ids.clear()
    _next_id = 1


def register_all(sets: list[Any]) -> None:
    """Registers the sets of hvd.init(process_sets=...). Raises ValueError if one is a duplicate or
    contains all ranks; the others are registered nevertheless."""
    wanted = [one if isinstance(one, ProcessSet) else ProcessSet(one) for one in sets]
    _agree("init", [one.ranks for one in wanted])
    for one in wanted:
        if _known(one) is None:
            _register(one)
    adopt(wanted)


def adopt(sets: list[Any]) -> None:
    """Gives each of `sets` the number of the registered set with its ranks; a repeated hvd.init()
    does only this. Raises ValueError if there is no such set, or for a duplicate."""
    seen: set[int | None] = {0}
    for one in sets:
        one.process_set_id = _known(one)
        if one.process_set_id in seen:
            one._invalidate()
        seen.add(one.process_set_id)
    for number, one in enumerate(sets):
        if one.process_set_id is None:
            raise ValueError(
                "Horovod could not be initialized because process_sets entry number "
                f"{number} is a duplicate, or was not given to the first hvd.init(): {one}"
            )


def add_process_set(process_set: Any) -> ProcessSet:
    """Registers a set; all ranks must call this. Raises ValueError for a duplicate."""
    new = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    _refuse_unless_dynamic()
    _agree("add", new.ranks)
    if _known(new) is not None:
        raise ValueError(f"Attempted to add a duplicate process set: {new}")
    _register(new)
    return new


def remove_process_set(process_set: ProcessSet) -> bool:
    """All ranks must call this. Returns whether the set was registered and has been removed."""
    number = process_set.process_set_id
    if not number:  # not registered, or the global set
        return False
    _refuse_unless_dynamic()
    _agree("remove", number)
    process_set._invalidate()
    if _by_id.pop(number, None) is None:
        return False
    _free_ids.append(number)
    return True


def get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    return {0: members(global_process_set), **{n: list(s.ranks or []) for n, s in _by_id.items()}}


def _refuse_unless_dynamic() -> None:
    if not _dynamic:
        raise ValueError(
            "To add or remove process sets after hvd.init(), set HOROVOD_DYNAMIC_PROCESS_SETS=1 or "
            "call hvd.init(process_sets='dynamic')"
        )


def _known(process_set: ProcessSet) -> int | None:
    """The number of the registered set with the same ranks, or None."""
    for number, ranks in get_process_set_ids_and_ranks().items():
        if ranks == process_set.ranks:
            return number
    return None


def _register(process_set: ProcessSet) -> None:
    global _next_id
    if not all(0 <= rank < group.group_size for rank in process_set.ranks or []):
        raise ValueError(f"{process_set}: ranks must be from 0 to {group.group_size - 1}")
    if _free_ids:
        number = _free_ids.pop(0)
    else:
        number, _next_id = _next_id, _next_id + 1
    process_set.process_set_id = number
    _by_id[number] = process_set


def _agree(what: str, mine: Any) -> None:
    """Raises ValueError unless all ranks make the same call: `what` and `mine` must be equal."""
    global _calls
    if not group.connected():
        return
    _calls += 1
    everyone = control_plane.headers_for_script(f"hvd process sets {_calls}", [what, mine])
    for rank, theirs in enumerate(everyone):
        if theirs != everyone[0]:
            raise ValueError(
                f"process sets must be the same on all ranks: rank 0 has {everyone[0]}, rank "
                f"{rank} has {theirs}"
            )
