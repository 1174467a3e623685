"""Supervises the waits in which a rank can do nothing else: at its start and at its end.

MPI_Init and MPI_Finalize have no timeout, and a script that has ended waits for the other ranks to
end. A thread supervises such a wait: it reports which ranks this one waits for and what is visible
of them, and ends the process after TF_MPI_STALL_TIMEOUT; the launcher then ends the job. It also
notices if the launcher is gone. One rank per node reports for all (`speaks`). The thread imports
nothing, because the main thread may hold import locks.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator

from tensorflow.mpi import config
from tensorflow.mpi._src.presence import deaths, launcher, peers, reasons
from tensorflow.mpi._src.runtime import c_api, log

_POLL_SECONDS = 0.5
_IDLE_SECONDS = 2.0
_START_POLL_SECONDS = 1.0  # between looks at /proc
_START_WARNING_SECONDS = 10.0  # a start is slow, but rarely this slow
_LOST_SECONDS = 3.0  # a rank that has been off or gone for this long will not join
_AFTER_SPEAKER_SECONDS = 2.0  # how much later than the reporting rank the others end themselves
_IDLE_SHARE = 0.01  # of a processor; a rank that uses less is idle
_EXIT_CODE = 1


class _Wait:
    """The state of one wait."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.since = self.warned = time.monotonic()
        self.node = peers.Node()

    def restart(self) -> None:
        """Called when something has happened: the wait begins anew."""
        self.since = self.warned = time.monotonic()

    def waited(self) -> float:
        """How long this wait has lasted, in seconds."""
        return time.monotonic() - self.since

    def is_due(self, warning: float) -> bool:
        """Whether a report is due: every `warning` seconds; never if that is 0."""
        if not warning or time.monotonic() - self.warned < warning:
            return False
        self.warned = time.monotonic()
        return True

    def say(self, text: str) -> None:
        log.say_as(self.rank, self.size, text)

    def end(self, why: str, speaks: bool) -> None:
        """Ends this process, from any thread; later if another rank of the node speaks."""
        if not speaks:
            time.sleep(_AFTER_SPEAKER_SECONDS)
        declare_exit()
        self.say(f"{why}; this rank ends")
        log.flush()
        os._exit(_EXIT_CODE)


class _Watcher:
    """The supervising thread. Starts early: Python 3.12 or newer cannot start threads at exit."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._poll: Callable[[], None] | None = None  # guarded by _changed
        self.idle: Callable[[], None] | None = None  # called every _IDLE_SECONDS outside waits
        self.launcher: launcher.Launcher | None = None
        threading.Thread(target=self._loop, name="tf_mpi_watch", daemon=True).start()

    def _loop(self) -> None:
        while True:
            with self._changed:
                poll = self._poll
                self._changed.wait(_POLL_SECONDS if poll is not None else _IDLE_SECONDS)
                # Called under the lock, so that it does not report a wait that is over.
                if self._poll is poll and (call := poll or self.idle) is not None:
                    call()
            if self.launcher is not None and self.launcher.is_gone():
                self.end_with_launcher()

    def end_with_launcher(self) -> None:
        declare_exit()
        if self.launcher is not None:
            self.launcher.exit_with_launcher()

    def set(self, poll: Callable[[], None] | None) -> Callable[[], None] | None:
        """From now on calls `poll` every _POLL_SECONDS; returns the previous function."""
        with self._changed:
            before, self._poll = self._poll, poll
            self._changed.notify()
        return before


_watcher: _Watcher | None = None
_ranks: deaths.Ranks | None = None  # of this node; set during the start


def declare_exit() -> None:
    """Notes that this rank ends for a known reason, so that others do not report its death.
    Thread-safe."""
    if _ranks is not None:
        _ranks.declare_exit()


@contextlib.contextmanager
def _polling(poll: Callable[[], None]) -> Iterator[_Watcher]:
    """Calls `poll` on the watcher's thread, which the first call starts, while the body runs."""
    global _watcher
    if _watcher is None:
        _watcher = _Watcher()
    watcher = _watcher
    before = watcher.set(poll)
    try:
        yield watcher
    finally:
        watcher.set(before)


def _timeout_notice() -> str:
    timeout = config.get("TF_MPI_STALL_TIMEOUT")
    return f"; this rank ends after TF_MPI_STALL_TIMEOUT, {timeout:.0f} s" if timeout else ""


_OFF_ELSEWHERE = (
    "ranks on another node were started with TF_MPI_ENABLE=0; to pass that variable to all nodes, "
    "use mpirun -x TF_MPI_ENABLE"
)


class _Start(_Wait):
    """The wait from loading MPI until the engine runs."""

    def __init__(self, placement: config.Launcher) -> None:
        super().__init__(placement.rank, placement.size)
        self._local_size = placement.local_size
        self._passing = ""  # advice about passing TF_MPI_ENABLE to other nodes
        if placement.is_open_mpis:
            self._passing = "; mpirun passes that to other nodes only with -x TF_MPI_ENABLE"
        self._whom = ""  # from c_api.start_waits_for
        self._lost_since: float | None = None  # when a rank was first seen to be off or gone
        # Most ranks look less often, because one per node is enough.
        self._interval = _START_POLL_SECONDS * min(10, 1 + self.rank)
        self._next = self.since
        warning = config.get("TF_MPI_STALL_WARNING")
        self._warning = min(warning, _START_WARNING_SECONDS)
        self._timeout = config.get("TF_MPI_STALL_TIMEOUT")

    def poll(self) -> None:
        whom = c_api.start_waits_for()
        if whom != self._whom:
            self._whom = whom
            self.restart()
            self._next = self.since + self._interval
        if not whom or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._interval
        if config.is_off_elsewhere():
            self.end(f"cannot start without the others: {_OFF_ELSEWHERE}", speaks=True)
        known = self.node.peers()
        not_started = {rank: peer for rank, peer in known.items() if peer.stage != "started"}
        speaks = not any(rank < self.rank and rank not in not_started for rank in known)
        self._end_if_lost(known, not_started, speaks)
        # The exchange of settings has its own timeout and a more detailed message.
        if self._timeout and self.waited() >= self._timeout and "settings" not in whom:
            self.end(self._report(known, not_started), speaks)
        if self.is_due(self._warning) and speaks:
            self.say(self._report(known, not_started) + _timeout_notice())

    def _end_if_lost(
        self, known: dict[int, peers.Peer], not_started: dict[int, peers.Peer], speaks: bool
    ) -> None:
        """Ends this rank if it is certain that another will not join."""
        off = [peer for peer in not_started.values() if peer.stage == "off"]
        gone = self._unseen(known) if peers.sees_siblings() else []
        if not off and not gone:
            self._lost_since = None
            return
        if self._lost_since is None:
            self._lost_since = time.monotonic()
        if time.monotonic() - self._lost_since < _LOST_SECONDS:
            return
        why = f"{peers.ranks(gone)} ended before reaching this point; see what was printed there"
        if off:
            who = ", ".join(peer.name() for peer in off)
            were = "was" if len(off) == 1 else "were"
            why = f"{who} {were} started with TF_MPI_ENABLE=0; use the same value on all ranks"
        self.end(f"cannot start without the others: {why}", speaks)

    def _unseen(self, known: dict[int, peers.Peer]) -> list[int]:
        """Ranks of this node that have no process, if it is known which ranks are on this node."""
        if self._local_size != self.size:
            return []
        return [rank for rank in range(self.size) if rank not in known]

    def _report(self, known: dict[int, peers.Peer], not_started: dict[int, peers.Peer]) -> str:
        described = [f"{peer.name()} {_STAGES[peer.stage]}" for peer in not_started.values()]
        if unseen := self._unseen(known):
            described.append(f"no process of {peers.ranks(unseen)} is visible on this node")
        elif self.size > len(known):
            node, unknown = os.uname().nodename, self.size - len(known)
            described.append(
                f"{unknown} {'rank is' if unknown == 1 else 'ranks are'} not visible from this "
                f"node, {node}; ranks with TF_MPI_ENABLE=0 do not join{self._passing}"
            )
        seen = f" ({'; '.join(described)})" if described else ""
        return f"has waited {self.waited():.0f} s for {self._whom}{seen}"


_STAGES = {
    "off": "was started with TF_MPI_ENABLE=0",
    "stopped": "is stopped, for example by SIGSTOP",
    "without us": "runs TensorFlow without averaging: TF_MPI_ENABLE=0 there, or another wheel",
    "before": "has not imported tensorflow",
}


@contextlib.contextmanager
def start(placement: config.Launcher | None) -> Iterator[None]:
    """Wraps the code that connects the ranks. From here on this rank ends if its launcher is gone,
    and reports ranks of this node that end without a message."""
    global _ranks
    if placement is None or placement.size == 1:
        yield
        return
    with _polling(_Start(placement).poll) as watcher:
        watcher.launcher = launcher.find(placement)
        if watcher.launcher is not None:
            watcher.launcher.when_gone(watcher.end_with_launcher)
        _ranks = deaths.ranks_of_node(placement)
        try:
            yield
        finally:
            if _ranks is not None:
                _ranks.all_arrived()


# Rank 0 posts this for ranks that cannot see its processor time: those of other nodes, and all
# after a death. Other ranks that are not visible count as idle.
_AT_WORK = b"at work after others have joined"


class _AtEnd(_Wait):
    """What both sides of a wait at the end need."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._warning = config.get("TF_MPI_STALL_WARNING")
        self._timeout = config.get("TF_MPI_STALL_TIMEOUT")
        self._exchanges = -1  # with joins, at the last poll
        # Between looks at /proc: four per timeout, at least one per warning; 0: neither is set.
        self._interval = min(self._warning or self._timeout, (self._timeout or self._warning) / 4)


class _End(_AtEnd):
    """The wait from the end of the script to the end of MPI. Any exchange of the other ranks
    restarts it, because they are still training."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._posts = 0  # of _AT_WORK, at the last look
        self._worked = self._looked = self.since  # when the others last worked; the last look
        self._used: dict[int, float] | None = None  # their processor time at the last look

    def poll(self) -> None:
        joined = c_api.joined()
        exchanges = c_api.stats()["collectives"] + len(joined)
        if exchanges != self._exchanges:
            self._exchanges, self._used = exchanges, None
            self.restart()
            self._worked = self.since
            return
        first = self._used is None
        if not self._interval or (not first and time.monotonic() - self._looked < self._interval):
            return
        known = self.node.peers()
        if (now := c_api.topology()[:2]) != (self.rank, self.size):
            self.rank, self.size = now  # others have died; the launcher's numbers no longer apply
        if c_api.load().tfmpi_generation():
            known = {}  # after deaths the survivors have new numbers; /proc shows the old ones
        missing = [rank for rank in range(self.size) if rank not in joined]
        at_work = self._find_active(known, missing)
        if first:
            return
        speaks = not any(rank < self.rank and rank in joined for rank in known)
        report = self._report(known, missing, at_work)
        if self._timeout and time.monotonic() - self._worked >= self._timeout:
            self.end(report, speaks)
        if self.is_due(self._warning) and speaks:
            self.say(report + ("" if self._worked == self._looked else _timeout_notice()))

    def _find_active(self, known: dict[int, peers.Peer], missing: list[int]) -> set[int]:
        """The ranks of `missing` that have used their processor since the last call."""
        now = time.monotonic()
        least = _IDLE_SHARE * (now - self._looked)
        before = self._used or {}
        self._used = {rank: known[rank].seconds for rank in missing if rank in known}
        at_work = {
            rank
            for rank, seconds in self._used.items()
            if rank in before and seconds - before[rank] >= least
        }
        if (posts := c_api.load().tfmpi_posted(_AT_WORK)) != self._posts:
            self._posts = posts
            at_work.add(0)
        # If one is stopped, the others wait for it, which looks like a little work.
        stopped = any(known[rank].stage == "stopped" for rank in missing if rank in known)
        if at_work and not stopped:
            self._worked = now
        self._looked = now
        return at_work

    def _report(self, known: dict[int, peers.Peer], missing: list[int], at_work: set[int]) -> str:
        begun = f"its script has ended, and it has waited {self.waited():.0f} s for"
        if not missing:
            return f"{begun} MPI to end; the scripts of all ranks have ended"
        described = []
        for rank in missing:
            doing = "is at work" if rank in at_work else "is idle"
            if rank in known:
                doing = _STAGES["stopped"] if known[rank].stage == "stopped" else doing
                described.append(f"{known[rank].name()} {doing}")
            elif rank in at_work:
                described.append(f"rank {rank} {doing}")
        seen = f" ({'; '.join(described)})" if described else ""
        return f"{begun} the script of {peers.ranks(missing)} to end{seen}"


class _AwaitedEnd(_AtEnd):
    """Reports where this rank's script is, if other ranks wait for it to end."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._looked = 0.0
        self._used: float | None = None  # processor time at the last look, if others have joined

    def poll(self) -> None:
        joined = sorted(c_api.joined())
        if not joined:
            return
        if self._interval and c_api.topology()[0] == 0:
            self._post_if_at_work()
        exchanges = c_api.stats()["collectives"] + len(joined)
        if exchanges != self._exchanges:
            self._exchanges = exchanges
            self.restart()
        elif self.is_due(self._warning):
            place = reasons.place_of_main_thread()
            has = "has" if len(joined) == 1 else "have"
            self.say(
                f"{peers.ranks(joined)} {has} waited {self.waited():.0f} s or longer for this "
                f"rank's script to end{'; it is at ' + place if place else ''}"
            )

    def _post_if_at_work(self) -> None:
        now = time.monotonic()
        if self._used is not None and now - self._looked < self._interval:
            return
        own = self.node.peers().get(
            self.rank
        )  # self.rank: the launcher's number, also after a death
        used = 0.0 if own is None else own.seconds
        if self._used is not None and used - self._used >= _IDLE_SHARE * (now - self._looked):
            c_api.load().tfmpi_post(_AT_WORK)
        self._looked, self._used = now, used


def started_by() -> launcher.Launcher | None:
    """The launcher whose end also ends this rank."""
    return None if _watcher is None else _watcher.launcher


def while_the_script_runs(rank: int, size: int) -> None:
    """Called once, when the ranks are connected; starts _AwaitedEnd."""
    if _watcher is not None:
        _watcher.idle = _AwaitedEnd(rank, size).poll


@contextlib.contextmanager
def end(rank: int, size: int) -> Iterator[None]:
    """Wraps the join, in which this rank waits for the other ranks and MPI to end."""
    if size == 1 and _watcher is None:  # with a watcher, there were others, which have died
        yield
        return
    with _polling(_End(rank, size).poll):
        yield


@contextlib.contextmanager
def failing(seconds: float, rank: int, size: int) -> Iterator[None]:
    """Wraps the call by which a failing rank notifies the others; after `seconds` ends the rank."""
    if size == 1:
        yield
        return
    wait = _Wait(rank, size)

    def poll() -> None:
        if wait.waited() >= seconds:
            wait.end(
                f"could not report its failure to the other ranks within {seconds:.0f} s", True
            )

    with _polling(poll):
        yield
