"""The process that has started this rank, and what is left to do when it is gone.

A launcher ends its ranks. Where it is killed itself (by the kernel when memory is short, by a batch
system, by a time limit of the program that ran it) Open MPI's leave their ranks to train on, unseen
and with nobody to end them. So the kernel tells a rank of its launcher's end (pidfd), and the rank
ends without it: at once, as some MPIs end a process that has lost its launcher, without a word.
MPICH's and Intel's ranks are killed by their proxies, those of other nodes by their daemons.

A rank that was started to outlive its launcher (by nohup, by setsid) is left alone.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
from collections.abc import Callable

from tensorflow.mpi import config
from tensorflow.mpi._src.presence import peers

_EXIT_CODE = 1
_SIGHUP = 1 << 0  # in /proc's masks of signals


class Launcher:
    """The launcher's process on this node, as long as it is there.

    Output of a rank goes by way of its launcher, so what is said of the launcher's end goes to the
    launcher's own stderr, which is opened here.
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
            with contextlib.suppress(OSError):  # a socket, or another user's
                self._stderr = os.open(f"/proc/{pid}/fd/2", flags)

    def is_gone(self) -> bool:
        try:
            now = peers.stat(self._pid)
        except OSError:
            return True
        return now.has_ended or now.began != self._began

    def when_gone(self, call: Callable[[], None]) -> None:
        """`call` is called on a thread; where the kernel does not tell, is_gone() does."""
        try:
            end = os.pidfd_open(self._pid)
        except OSError:  # before Linux 5.3
            return

        def wait() -> None:
            poll = select.poll()  # of any number of files
            poll.register(end, select.POLLIN)
            poll.poll()
            call()

        threading.Thread(target=wait, name="tf_mpi_launcher", daemon=True).start()

    def cores(self) -> set[int]:
        """The processors, by the kernel's numbers, that it may use, and give to ranks; none if it
        is gone."""
        with contextlib.suppress(OSError):
            return os.sched_getaffinity(self._pid)
        return set()

    def exit_with_launcher(self) -> None:
        """The launcher is gone: ends this process; on any thread."""
        self._ends.acquire()  # for good: another thread may have found out, too
        if self._speaks:
            text = (
                f"tensorflow.mpi rank {self._rank}/{self._size}: {self._name} (process "
                f"{self._pid}), which had started the ranks, has been killed; the ranks of this "
                "node end with it. Start them with nohup or setsid to have them outlive it\n"
            )
            with contextlib.suppress(OSError):
                os.write(self._stderr if self._stderr >= 0 else 2, text.encode())
        with contextlib.suppress(OSError, ValueError):  # nobody may read it any more
            sys.stdout.flush()
        os._exit(_EXIT_CODE)


def of_this_rank(launcher: config.Launcher) -> Launcher | None:
    """None if it is not to be seen from here, or if this rank is to outlive it."""
    try:
        pid = ancestor(launcher)
        if pid is None or _outlives(pid):
            return None
        return Launcher(pid, launcher.rank, launcher.size, launcher.local_rank in (-1, 0))
    except OSError:
        return None


def ancestor(launcher: config.Launcher) -> int | None:
    """The nearest one that is not this rank: between them is only what the rank was wrapped in.

    None if it is not to be seen from here. Raises OSError.
    """
    pid = peers.stat(os.getpid()).parent
    while _is_child_of(pid, launcher.rank):
        pid = peers.stat(pid).parent
    return pid if pid > 1 else None


def _is_child_of(pid: int, rank: int) -> bool:
    """Whether it was started as this rank."""
    try:
        return pid > 1 and config.rank_of(peers.environment(pid)) == rank
    except PermissionError:  # another user's: Slurm's, as root
        return False


def _outlives(pid: int) -> bool:
    """Whether this rank has another session than `pid`, or ignores hangups where `pid` does not."""
    own = os.getpid()
    if peers.stat(own).session != peers.stat(pid).session:
        return True
    return bool(peers.ignored_signals(own) & ~peers.ignored_signals(pid) & _SIGHUP)
