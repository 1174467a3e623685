"""Reports ranks that end without a message: by a signal or by os._exit.

Open MPI's launcher only prints a banner, and kills the other ranks within milliseconds. So the
ranks of a node watch each other's processes (pidfd), and one of them immediately reports which rank
died, and by which signal if that is still visible. MPICH's proxies kill the others before they
notice.

The ranks of a node share an unlinked file, to which they append lines: who they are, that they end
on purpose, and whose death they are about to report. Appends are atomic, so all ranks see the same
report first, even if its writer is dead by then.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import struct
import threading
import time
import zlib

from tensorflow.mpi import config
from tensorflow.mpi._src.presence import launcher, peers

# How many following ranks each rank watches. As many watch it, of which some should be alive.
_WATCHED = 4
_SIGNALS_OF_LAUNCHERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LAUNCHER_SECONDS = 1.0  # a launcher that ends its ranks has ended this one, too, by then
_STATUS_TRIES = 5  # /proc shows the status of a process until its parent has reaped it
_STATUS_SECONDS = 0.001
# PIDFD_GET_INFO (linux/pidfd.h): since Linux 6.15 also the status of a process that was reaped.
_INFO = struct.Struct("=QQ11Ii")
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
_INFO_EXIT = 1 << 3
_SHORT = "the kernel does this when memory is short (see dmesg there), and so do batch systems"
_CRASHED = "set PYTHONFAULTHANDLER=1 to print where it was"


class Ranks:
    """The ranks of this node that the process `started_by` has started. May raise OSError."""

    def __init__(self, started_by: int, placement: config.Launcher) -> None:
        self._placement = placement
        self._shrinks = config.get("TF_MPI_FAULT") == "shrink"
        began = peers.stat(started_by).began
        job = zlib.crc32(config.job().encode())  # a daemon may serve several jobs
        self._path = f"/dev/shm/tensorflow-mpi-{os.getuid()}-{started_by}-{began}-{job:08x}"
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(self._path, flags, 0o600)
        if os.fstat(self._file).st_uid != os.getuid():
            os.close(self._file)
            raise PermissionError(self._path)
        self._append(f"rank {placement.rank} {os.getpid()}")

    def all_arrived(self) -> None:
        """Call when all ranks have started, or the start has failed. Unlinks the file, and starts
        to watch the others."""
        self._unlink()
        ranks = sorted((int(line[1]), int(line[2])) for line in self._lines() if line[0] == "rank")
        following = [one for one in ranks if one[0] > self._placement.rank]
        preceding = [one for one in ranks if one[0] < self._placement.rank]
        watched = (following + preceding)[:_WATCHED]
        pidfds: dict[int, tuple[int, int]] = {}
        for rank, pid in watched:
            with contextlib.suppress(OSError):  # Linux before 5.3, or the process has ended
                pidfds[os.pidfd_open(pid)] = rank, pid
        if pidfds:
            threading.Thread(
                target=self._watch, args=[pidfds], name="tf_mpi_deaths", daemon=True
            ).start()

    def declare_exit(self) -> None:
        """Notes that this rank has reported its error, or ends normally. Thread-safe."""
        self._append(f"ends {self._placement.rank} {os.getpid()}")
        self._unlink()  # the file still has its name if a rank ends during the start

    def _unlink(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    def _watch(self, pidfds: dict[int, tuple[int, int]]) -> None:
        poll = select.poll()
        for pidfd in pidfds:
            poll.register(pidfd, select.POLLIN)
        while pidfds:
            for pidfd, _ in poll.poll():
                poll.unregister(pidfd)
                rank, pid = pidfds.pop(pidfd)
                if ["ends", str(rank), str(pid)] not in self._lines():
                    self._report(rank, pid, _status(pidfd, pid))
                os.close(pidfd)

    def _report(self, rank: int, pid: int, status: int | None) -> None:
        killed_by = None if status is None else status & 0x7F
        if killed_by in _SIGNALS_OF_LAUNCHERS:
            time.sleep(_LAUNCHER_SECONDS)
        self._append(f"dead {rank} {pid} {os.getpid()}")
        deaths = [line for line in self._lines() if line[0] == "dead"]
        if self._shrinks:  # the job continues, so each death is reported
            deaths = [line for line in deaths if line[2] == str(pid)]
        if deaths[0][1:] != [str(rank), str(pid), str(os.getpid())]:
            return  # another rank reports it, or the launcher ended `rank` because another died
        text = (
            f"tensorflow.mpi rank {self._placement.rank}/{self._placement.size}: "
            f"rank {rank} (process {pid} on {os.uname().nodename}) {_how(status)}\n"
        )
        with contextlib.suppress(OSError):
            os.write(2, text.encode())

    def _append(self, line: str) -> None:
        with contextlib.suppress(OSError):
            os.write(self._file, f"{line}\n".encode())

    def _lines(self) -> list[list[str]]:
        size = os.fstat(self._file).st_size
        return [line.split() for line in os.pread(self._file, size, 0).decode().splitlines()]


def _status(pidfd: int, pid: int) -> int | None:
    """The status as wait() returns it; None if it is not visible."""
    for _ in range(_STATUS_TRIES):
        with contextlib.suppress(OSError):
            return peers.stat(pid).exit_status
        with contextlib.suppress(OSError):
            request = _INFO.pack(_INFO_EXIT, *[0] * 13)
            mask, *_, status = _INFO.unpack(fcntl.ioctl(pidfd, _GET_INFO, request))
            if mask & _INFO_EXIT:
                return int(status)
        time.sleep(_STATUS_SECONDS)
    return None


def ranks_of_node(placement: config.Launcher) -> Ranks | None:
    """The ranks of this node; None if the launcher's process or the shared file is out of reach."""
    try:
        pid = launcher.ancestor(placement)
        return None if pid is None else Ranks(pid, placement)
    except OSError:
        return None


def _how(status: int | None) -> str:
    if status is None:
        return f"ended without a message (killed?); {_SHORT}"
    if not (killed_by := status & 0x7F):
        return f"exited by os._exit or similar, with code {status >> 8}, before its script ended"
    try:
        name = signal.Signals(killed_by).name
    except ValueError:  # a real-time signal
        name = f"signal {killed_by}"
    return f"was killed by {name}; {_SHORT if killed_by == signal.SIGKILL else _CRASHED}"
