"""Persistent ranks: run scripts one after another in processes that have TensorFlow loaded.

With pytest's option --pool, as in the quick tier, scripts of `launch(..., pooled=True)` run here.
Without it, as in the full tier, each script gets its own ranks, which shows whether it passes only
after another one. There is a job of 2 ranks, whose processes run every script (worker.py), and a
plain process that forks for each script, so that nothing is left over. A rank cannot be forked, so
a script in the job sees the traces of earlier ones in the process, such as names in use and a
completed initial broadcast; scripts that test these are not pooled. A script that fails or hangs
ends its job, and the next script starts a new one.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import launch
from launch import LaunchError, LaunchResult

WORKER = Path(__file__).with_name("worker.py")
START_SECONDS = 300.0
GRACE_SECONDS = 5.0  # for the other ranks, after one has failed
END_SECONDS = 60.0


class _Job:
    """A job of `np` ranks; for 0, a plain process that forks."""

    def __init__(self, np: int) -> None:
        self._np = np
        self._scripts = 0
        self._marker = uuid.uuid4().hex
        self._directory = Path(tempfile.mkdtemp(prefix="pool-"))
        self._ranks: dict[int, socket.socket] = {}
        with socket.socket(socket.AF_UNIX) as server:
            address = self._directory / "socket"
            server.bind(str(address))
            server.listen(max(np, 1))
            server.settimeout(1)
            deadline = time.monotonic() + START_SECONDS
            words = [sys.executable, str(WORKER), str(address), "ranks" if np else "forks"]
            self._process, _ = launch.begin(words, np, self._directory, self._marker)
            while len(self._ranks) < max(np, 1):
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    if self._process.poll() is None and time.monotonic() < deadline:
                        continue
                    raise self._broken("has not started") from None
                self._ranks[int(connection.recv(16))] = connection

    def run(self, script: Path, args: Sequence[str], timeout: float) -> tuple[LaunchResult, bool]:
        """Runs a script; returns its result, and whether the job can run another."""
        self._scripts += 1
        folder = self._directory / str(self._scripts)
        folder.mkdir()
        start = time.monotonic()
        request = {"folder": str(folder), "script": str(script), "args": list(args)}
        for connection in self._ranks.values():
            connection.sendall(json.dumps(request).encode() + b"\n")
        codes = self._codes(start + timeout)
        failed = [code for code in codes.values() if code]
        wall = time.monotonic() - start
        if len(codes) < len(self._ranks) and not failed:
            stacks = launch.collect_stacks(folder, len(self._ranks), self._process)
            self.kill()
            result = launch.collect(folder, len(self._ranks), -signal.SIGKILL, wall)
            shutil.rmtree(self._directory, ignore_errors=True)
            raise launch.timed_out([str(script), *args], timeout, stacks, result)
        lives = not failed or self._np == 0  # a fork's failure does not affect its parent
        if not lives:
            self.kill()
        result = launch.collect(folder, len(self._ranks), failed[0] if failed else 0, wall)
        shutil.rmtree(folder if lives else self._directory, ignore_errors=True)
        return result, lives

    def _codes(self, deadline: float) -> dict[int, int]:
        """Exit codes by rank, for the ranks that have answered before the deadline."""
        codes: dict[int, int] = {}
        waiting = dict(self._ranks)
        while waiting and (left := deadline - time.monotonic()) > 0:
            ready, _, _ = select.select(list(waiting.values()), [], [], left)
            for rank in [rank for rank, connection in waiting.items() if connection in ready]:
                answer = waiting.pop(rank).recv(16)
                # No answer: the process is gone.
                codes[rank] = int(answer) if answer else -signal.SIGKILL
                if codes[rank] and self._np:
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        return codes

    def end(self) -> None:
        """Ends the ranks as after a script; raises LaunchError if they do not end normally."""
        for connection in self._ranks.values():
            connection.close()
        try:
            code = self._process.wait(END_SECONDS)
        except Exception:
            raise self._broken(f"has not ended within {END_SECONDS:g} s") from None
        if code:
            raise self._broken(f"has ended with {code}")
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def kill(self) -> None:
        """Kills all processes of the job."""
        launch.kill(self._process, self._marker)

    def _broken(self, what: str) -> LaunchError:
        """Kills the job; returns the error for the caller to raise."""
        self.kill()
        result = launch.collect(self._directory, max(self._np, 1), -1, 0)
        shutil.rmtree(self._directory, ignore_errors=True)
        return LaunchError(f"the job of {self._np} ranks in the pool {what}\n{result.report()}")


_jobs: dict[int, _Job] = {}


def run(script: str | Path, np: int, args: Sequence[str | Path], timeout: float) -> LaunchResult:
    """launch.launch() for pooled scripts."""
    if np not in (0, 2):
        raise ValueError(
            f"{script} is pooled on {np} ranks: the pool has a job of 2 ranks and a plain process"
        )
    job = _jobs.pop(np, None) or _Job(np)
    result, lives = job.run(Path(os.path.abspath(script)), [str(a) for a in args], timeout)
    if lives:
        _jobs[np] = job
    return result


def end() -> None:
    """Ends the jobs, at the end of the tests; raises LaunchError if one does not end normally."""
    while _jobs:
        _jobs.popitem()[1].end()
