"""Starts the processes of runs, waits until they end or a deadline passes, and kills the rest.

Several runs may be alive at once and take turns, which are passed through pipes in their folders.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MARKER = "BENCHMARK_RUN_ID"  # in the environment of every process of a run, including descendants
LAUNCHER_VARIABLES = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "SLURM_")
PEER_GRACE = 5.0  # seconds that the other processes get after one has failed
NOTE_LENGTH = 160  # characters
PID_BYTES = 4  # little-endian: a rank writes this to pass on its turn


@dataclass(frozen=True)
class Process:
    """A command line and additional environment variables."""

    command: Sequence[str]
    environment: Mapping[str, str]


class RunFailed(RuntimeError):
    """A run failed; the message is short enough for a note in the table."""


class Run:
    """Processes that run at the same time, with output to `log`. A context manager that kills them
    all.

    environment: the base environment, by default this process's. Launchers' variables are removed
    from it, so that a run may itself be started under a launcher.
    """

    def __init__(
        self,
        processes: Sequence[Process],
        log: Path,
        cwd: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._processes = processes
        self._log = log
        self._cwd = cwd
        self._base = environment
        self._marker = uuid.uuid4().hex
        self._started: list[subprocess.Popen[bytes]] = []
        self._begin = time.monotonic()

    def __enter__(self) -> Run:
        try:
            with open(self._log, "wb") as output:
                for process in self._processes:
                    extra = {**process.environment, MARKER: self._marker}
                    self._started.append(
                        subprocess.Popen(
                            process.command,
                            env=_environment(self._base, extra),
                            cwd=self._cwd,
                            stdin=subprocess.DEVNULL,
                            stdout=output,
                            stderr=subprocess.STDOUT,
                            start_new_session=True,
                        )
                    )
        except BaseException:
            _end(self._started, self._marker)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        _end(self._started, self._marker)

    @property
    def any_ended(self) -> bool:
        """Whether any of its processes has ended."""
        return any(process.poll() is not None for process in self._started)

    def wait(self, timeout: float) -> None:
        """Waits until all processes have succeeded.

        Raises RunFailed, with the last error in the log, if one fails or after `timeout` seconds.
        """
        if _times_out(self._started, time.monotonic() + timeout):
            seconds = time.monotonic() - self._begin
            _end(self._started, self._marker)
            error = last_error(self._log)
            raise RunFailed(f"still running after {seconds:.0f} s, killed: {error}")
        _end(self._started, self._marker)
        codes = [process.returncode for process in self._started]
        if any(codes):
            raise RunFailed(last_error(self._log) or f"exit status {codes}")


def run(
    processes: Sequence[Process],
    log: Path,
    timeout: float,
    cwd: Path,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Runs the processes to completion; for the arguments and errors see Run and Run.wait."""
    with Run(processes, log, cwd, environment) as started:
        started.wait(timeout)


class Pipes:
    """The pipes in a run's folder that give turns to its ranks.

    If `stops`, ranks that have passed on their turn are stopped (SIGSTOP) until the next one: a
    polling thread, such as Horovod's, would take the core from the run whose turn it is.
    """

    def __init__(self, folder: Path, ranks: int, *, stops: bool = True) -> None:
        self._stops = stops
        self._stopped: list[int] = []
        self._turns, self._passed = (
            [self._pipe(folder / f"{name}.{rank}") for rank in range(ranks)]
            for name in ("turn", "passed")
        )

    @staticmethod
    def _pipe(path: Path) -> int:
        os.mkfifo(path)
        return os.open(path, os.O_RDWR)  # so that opening does not wait for the other end

    def give(self) -> None:
        """Starts the turn of all ranks."""
        _signal(self._stopped, signal.SIGCONT)
        self._stopped = []
        for turn in self._turns:
            os.write(turn, b".")

    def wait(self, run: Run, deadline: float) -> bool:
        """Waits until all ranks have passed on their turn, then stops them if `stops` is set.

        Returns False if one of the run's processes ends, or the deadline passes, before that.
        """
        waiting = set(self._passed)
        pids = []
        while waiting and not run.any_ended and time.monotonic() < deadline:
            ready, _, _ = select.select(list(waiting), [], [], 0.5)
            for passed in ready:
                pids.append(int.from_bytes(os.read(passed, PID_BYTES), "little"))
                waiting.remove(passed)
        if waiting:
            return False
        if self._stops:
            _signal(pids, signal.SIGSTOP)
            self._stopped = pids
        return True

    def close(self) -> None:
        for pipe in [*self._turns, *self._passed]:
            os.close(pipe)


def take_turns(runs: Sequence[tuple[Run, Pipes]], turns: int, deadline: float) -> None:
    """Gives each run a warm-up turn, then `turns` turns in rotation, then one to finish in.

    Runs that end early get no more turns. The caller waits for the runs.
    """
    alive = list(runs)
    for _ in range(1 + turns):
        for one in list(alive):
            run, pipes = one
            pipes.give()
            if not pipes.wait(run, deadline):
                alive.remove(one)
    for _, pipes in alive:
        pipes.give()


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    """Sends the signal to the processes that still exist."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _environment(base: Mapping[str, str] | None, extra: Mapping[str, str]) -> dict[str, str]:
    environment = {
        name: value
        for name, value in (os.environ if base is None else base).items()
        if not name.startswith(LAUNCHER_VARIABLES)
    }
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if os.geteuid() == 0:
        environment["OMPI_ALLOW_RUN_AS_ROOT"] = "1"
        environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    return {**environment, **extra}


def _times_out(processes: Sequence[subprocess.Popen[bytes]], deadline: float) -> bool:
    """Whether the deadline passed. If a process fails first: False, after PEER_GRACE at most."""
    while any(process.poll() is None for process in processes):
        if time.monotonic() > deadline:
            return True
        if any(process.poll() not in (None, 0) for process in processes):
            deadline = min(deadline, time.monotonic() + PEER_GRACE)
            _await_end(processes, deadline)
            return False
        time.sleep(0.02)
    return False


def _await_end(processes: Sequence[subprocess.Popen[bytes]], deadline: float) -> None:
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(0.02)


def _end(processes: Sequence[subprocess.Popen[bytes]], marker: str) -> None:
    """Terminates launchers gracefully, so that they remove their shared memory; kills the rest."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    _await_end(processes, time.monotonic() + 5)
    deadline = time.monotonic() + 10
    while pids := _marked(marker):
        _signal(pids, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise RunFailed(f"processes {pids} outlive SIGKILL")
        time.sleep(0.02)
    for process in processes:
        process.wait(10)


def _marked(marker: str) -> list[int]:
    """The living processes that carry the marker, in any group or session."""
    needle = f"{MARKER}={marker}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if needle in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def last_error(log: Path) -> str:
    """The last line of a log that looks like an exception; else the last line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\b\w*(Error|Exception)\b.*: ?\S", line)]
    line = (errors or lines or [""])[-1]
    return line if len(line) <= NOTE_LENGTH else line[: NOTE_LENGTH - 3] + "..."
