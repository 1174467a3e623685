"""The processes on this node that are ranks of this job, as /proc shows them.

Used to describe a rank that does not arrive and has sent no message. A process of this user belongs
to a rank if it has the launcher's variables of this job; the rank's children inherit them.
"""

from __future__ import annotations

import dataclasses
import os
import re
import time
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from tensorflow.mpi import config

_OURS, _TENSORFLOW = "libtensorflow_mpi.so", "libtensorflow_framework.so"
_TICKS = os.sysconf("SC_CLK_TCK")
_COMMAND_CHARACTERS = 60
# When to look again at a process of no rank: launchers fork a process before it becomes a rank.
_STRANGER_SECONDS = 5.0
_LAUNCHERS = frozenset("mpirun mpiexec prterun prted orterun orted slurmstepd".split())

# Described by _STAGES of watch.py, except "started": it has loaded our library.
Stage = Literal["off", "stopped", "started", "without us", "before"]


class Stat(NamedTuple):
    """What /proc shows of a process."""

    name: str
    state: str
    parent: int
    session: int
    began: int  # the start time, which differs if a later process has the same pid
    seconds: float  # processor time so far, with that of its children that have ended
    exit_status: int  # as wait() returns it; valid if the process has ended

    @property
    def has_ended(self) -> bool:
        return self.state in "ZX"


def stat(pid: int) -> Stat:
    """Raises OSError if there is no such process."""
    head, _, rest = os.fsdecode(_read(pid, "stat")).rpartition(")")
    state, *numbers = rest.split()
    seconds = sum(map(int, numbers[10:14])) / _TICKS
    name = head.partition("(")[2]
    parent, session, began, status = (int(numbers[place]) for place in (0, 2, 18, 48))
    return Stat(name, state, parent, session, began, seconds, status)


def ignored_signals(pid: int) -> int:
    """A bit mask; the bit of signal n is 1 << (n - 1)."""
    (mask,) = re.findall(r"^SigIgn:\s*(\w+)$", os.fsdecode(_read(pid, "status")), re.MULTILINE)
    return int(mask, 16)


@dataclasses.dataclass(frozen=True)
class Process:
    """One process of a rank."""

    pid: int
    command: str
    script: str  # the file name of the first argument that is not an option
    stopped: bool
    off: bool  # started with TF_MPI_ENABLE=0
    ours: bool  # has loaded our library
    tensorflow: bool  # has loaded TensorFlow's
    seconds: float  # processor time so far


@dataclasses.dataclass(frozen=True)
class Peer:
    """A rank as it is visible from here: its processes, at least one, in pid order."""

    rank: int
    processes: tuple[Process, ...]

    @property
    def stage(self) -> Stage:
        """How far the rank has got on its way to MPI_Init."""
        if any(process.stopped for process in self.processes):
            return "stopped"
        if any(process.ours for process in self.processes):
            return "started"
        if all(process.off for process in self.processes):
            return "off"
        return "without us" if any(one.tensorflow for one in self.processes) else "before"

    @property
    def seconds(self) -> float:
        """Processor time that its processes have used."""
        return sum(process.seconds for process in self.processes)

    @property
    def script(self) -> str:
        return self.processes[0].script

    def name(self) -> str:
        """ "rank 1 (process 4711, 'python train.py')": the process that has got furthest."""
        ahead = max(self.processes, key=lambda one: (one.ours, one.tensorflow, -one.pid))
        return f"rank {self.rank} (process {ahead.pid}, '{ahead.command}')"


class Node:
    """Looks at this node's processes repeatedly; cheap, because all ranks of a node may look."""

    def __init__(self) -> None:
        self._strangers: dict[int, float] = {}  # processes of no rank -> when to look again
        self._started: dict[int, tuple[int, Process]] = {}  # with our library -> (rank, process)

    def peers(self) -> dict[int, Peer]:
        """The visible ranks, including this one, by number."""
        found: dict[int, list[Process]] = {}
        now = time.monotonic()
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            if self._strangers.get(pid, 0.0) > now:
                continue
            try:
                seen = self._look_at(pid)
            except (OSError, ValueError, IndexError):
                seen = None  # has just ended, or belongs to another user
                self._started.pop(pid, None)
            if seen is None:
                self._strangers[pid] = now + _STRANGER_SECONDS
            else:
                found.setdefault(seen[0], []).append(seen[1])
        return {
            rank: Peer(rank, tuple(sorted(some, key=lambda one: one.pid)))
            for rank, some in sorted(found.items())
        }

    def _look_at(self, pid: int) -> tuple[int, Process] | None:
        """(rank, process); None if it belongs to no rank of this job."""
        if pid in self._started:  # only its state can change
            rank, process = self._started[pid]
            return rank, dataclasses.replace(process, **_doing(pid))
        environ = environment(pid)
        found = config.rank_of(environ)
        if found is None:
            return None
        process = _process(pid, environ)
        if process.ours:
            self._started[pid] = found, process
        return found, process


def sees_siblings() -> bool:
    """Whether the launcher has started this process directly, and so the other ranks of the node:
    then no container hides their processes."""
    try:
        return stat(os.getppid()).name in _LAUNCHERS
    except OSError:
        return False


def _read(pid: int, name: str) -> bytes:
    with open(f"/proc/{pid}/{name}", "rb") as file:
        return file.read()


def environment(pid: int) -> dict[str, str]:
    pairs = (item.partition("=") for item in os.fsdecode(_read(pid, "environ")).split("\0"))
    return {name: value for name, _, value in pairs if name}


def _process(pid: int, environ: dict[str, str]) -> Process:
    words = [word for word in os.fsdecode(_read(pid, "cmdline")).split("\0") if word]
    command = " ".join([*map(os.path.basename, words[:2]), *words[2:]])  # interpreter, script, …
    if len(command) > _COMMAND_CHARACTERS:
        command = command[: _COMMAND_CHARACTERS - 1] + "…"
    maps = _read(pid, "maps")
    return Process(
        pid=pid,
        command=command,
        script=next((os.path.basename(word) for word in words[1:] if word[:1] != "-"), ""),
        off=environ.get("TF_MPI_ENABLE") == "0",
        ours=_OURS.encode() in maps,
        tensorflow=_TENSORFLOW.encode() in maps,
        **_doing(pid),
    )


def _doing(pid: int) -> dict[str, Any]:
    now = stat(pid)
    if now.has_ended:
        raise ProcessLookupError(pid)
    return {"stopped": now.state in "Tt", "seconds": now.seconds}


def ranks(numbers: Sequence[int]) -> str:
    """ "rank 1", "ranks 1, 3 and 4"; of many, only the first. Like NameRanks of roll_call.cc."""
    most = 8
    text = ", ".join(str(number) for number in numbers[:most])
    if 1 < len(numbers) <= most:
        text = f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
    elif len(numbers) > most:
        text += f" and {len(numbers) - most} more"
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {text}"
