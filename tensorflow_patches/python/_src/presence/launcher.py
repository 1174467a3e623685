"""Watches the process that started this rank, and ends the rank if that process is killed.

Normally a launcher ends its ranks. If Open MPI's launcher is itself killed (by the kernel when
memory is short, by a batch system, by a time limit of the program that ran it), its ranks would
train on, unnoticed. So each rank watches its launcher (pidfd), and ends when that is gone;
immediately, because some MPIs would soon end the rank, too, but without a message. MPICH's and
Intel's ranks are killed by their proxies, ranks on other nodes by their daemons.

srun is no ancestor of its ranks: Slurm's daemon starts them, and keeps them if srun is killed. The
ranks on srun's own node find it by the port on which it listens.

A rank that was started to outlive its launcher (by nohup or setsid) is left alone.
"""

from __future__ import annotations

import contextlib
import glob
import os
import select
import threading
from collections.abc import Callable

from tensorflow.mpi import config
from tensorflow.mpi._src.presence import peers
from tensorflow.mpi._src.runtime import log

_EXIT_CODE = 1
_SIGHUP = 1 << 0  # in /proc's masks of signals
_LISTEN = "0A"  # a state in /proc/net/tcp


class Launcher:
    """The launcher's process on this node.

    A rank's output passes through its launcher, so the message about the launcher's end goes to the
    launcher's own stderr, which is opened here. `speaks`: whether this rank writes that message for
    its node.
    """

    def __init__(self, pid: int, rank: int, size: int, speaks: bool) -> None:
        self._pid, self._rank, self._size = pid, rank, size
        now = peers.stat(pid)
        self._began, self._name = now.began, now.name
        self._ends = threading.Lock()
        self._speaks = speaks
        self._stderr = -1
        if speaks:
            flags = os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
            with contextlib.suppress(OSError):  # a socket, or a process of another user
                self._stderr = os.open(f"/proc/{pid}/fd/2", flags)

    def is_gone(self) -> bool:
        try:
            now = peers.stat(self._pid)
        except OSError:
            return True
        return now.has_ended or now.began != self._began

    def when_gone(self, call: Callable[[], None]) -> None:
        """Calls `call` on a new thread once the launcher is gone. Without pidfd does nothing; the
        caller then polls is_gone()."""
        try:
            end = os.pidfd_open(self._pid)
        except OSError:  # before Linux 5.3
            return

        def wait() -> None:
            poll = select.poll()  # unlike select, supports any file descriptor
            poll.register(end, select.POLLIN)
            poll.poll()
            call()

        threading.Thread(target=wait, name="tf_mpi_launcher", daemon=True).start()

    def cores(self) -> set[int]:
        """The processors, by the kernel's numbers, that the launcher may use and give to ranks;
        empty if it is gone."""
        with contextlib.suppress(OSError):
            return os.sched_getaffinity(self._pid)
        return set()

    def exit_with_launcher(self) -> None:
        """Ends this process, because the launcher is gone. Thread-safe."""
        self._ends.acquire()  # never released: another thread may have noticed, too
        if self._speaks:
            text = (
                f"tensorflow.mpi rank {self._rank}/{self._size}: {self._name} (process "
                f"{self._pid}), which started the ranks, was killed, so the ranks of this node end "
                "now. To let ranks outlive their launcher, start it with nohup or setsid\n"
            )
            with contextlib.suppress(OSError):
                os.write(self._stderr if self._stderr >= 0 else 2, text.encode())
        log.flush()
        os._exit(_EXIT_CODE)


def find(launcher: config.Launcher) -> Launcher | None:
    """The launcher; None if it is not visible from here, or if this rank should outlive it."""
    try:
        parent = ancestor(launcher)
        pid = _listener(launcher.port) if launcher.port else parent
        if pid is None or _outlives(pid, parent or pid):
            return None
        speaks = launcher.local_rank in (-1, 0)  # -1: unknown
        return Launcher(pid, launcher.rank, launcher.size, speaks)
    except OSError:
        return None


def ancestor(launcher: config.Launcher) -> int | None:
    """The nearest ancestor that is not part of this rank, skipping programs that wrap the rank.

    None if it is not visible from here. Raises OSError.
    """
    pid = peers.stat(os.getpid()).parent
    while _is_part_of(pid, launcher.rank):
        pid = peers.stat(pid).parent
    return pid if pid > 1 else None


def _is_part_of(pid: int, rank: int) -> bool:
    """Whether the launcher has started process `pid` as `rank`, such as a program that wraps it."""
    try:
        return pid > 1 and config.rank_of(peers.environment(pid)) == rank
    except PermissionError:  # another user's, such as Slurm's, which runs as root
        return False


def _listener(port: int) -> int | None:
    """The process of this user that listens on the TCP port `port` of this node."""
    for table in ("tcp", "tcp6"):
        with open(f"/proc/self/net/{table}") as rows:
            next(rows)
            for row in rows:
                # sl, local address, remote address, state, queues, timer, retransmits, uid, timeout
                _, local, _, state, *_, inode = row.split()[:10]
                if state == _LISTEN and int(local.rpartition(":")[2], 16) == port:
                    return _holder(f"socket:[{inode}]")
    return None


def _holder(socket: str) -> int | None:
    """The process of this user that has `socket` open, which is named as in /proc/PID/fd."""
    for folder in glob.iglob("/proc/[0-9]*/fd"):
        with contextlib.suppress(OSError):  # another user's, or it has ended
            if any(os.readlink(entry.path) == socket for entry in os.scandir(folder)):
                return int(folder.split("/")[2])
    return None


def _outlives(pid: int, parent: int) -> bool:
    """Whether this rank is in another session than `parent`, or ignores SIGHUP but `pid` does
    not."""
    own = os.getpid()
    if peers.stat(own).session != peers.stat(parent).session:
        return True
    return bool(peers.ignored_signals(own) & ~peers.ignored_signals(pid) & _SIGHUP)
