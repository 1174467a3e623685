"""Ranks that live on: scripts run one after another in processes that have TensorFlow loaded.

The quick tier (pytest's option --pool) runs the scripts of `launch(..., pooled=True)` here; without
that option, and so in the full tier, each script gets ranks of its own, which shows whether it
passes only after another. There is one job of 2 ranks, whose processes run every script
(worker.py), and one plain process, which forks for each script: nothing is left over there. A rank
cannot be forked, so a script in the job finds what earlier ones have left in the process, such as
names that were used and an initial broadcast that is done. Tests of those are not pooled. A script
that fails or hangs ends its job, and the next script starts another.
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
LEFT_SECONDS = 5.0  # for the others, when a rank has failed
END_SECONDS = 60.0
LIVE = (0, 2)  # numbers of ranks; others are started for each script


class _Job:
    """`np` ranks, or for 0 a plain process that forks."""

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
        """How the script ended, and whether the job can take another."""
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
        lives = not failed or self._np == 0  # a fork's end is its own
        if not lives:
            self.kill()
        result = launch.collect(folder, len(self._ranks), failed[0] if failed else 0, wall)
        shutil.rmtree(folder if lives else self._directory, ignore_errors=True)
        return result, lives

    def _codes(self, deadline: float) -> dict[int, int]:
        """By rank, of those that have ended in time."""
        codes: dict[int, int] = {}
        waiting = dict(self._ranks)
        while waiting and (left := deadline - time.monotonic()) > 0:
            ready, _, _ = select.select(list(waiting.values()), [], [], left)
            for rank in [rank for rank, connection in waiting.items() if connection in ready]:
                answer = waiting.pop(rank).recv(16)
                codes[rank] = int(answer) if answer else -signal.SIGKILL  # the process is gone
                if codes[rank] and self._np:
                    deadline = min(deadline, time.monotonic() + LEFT_SECONDS)
        return codes

    def end(self) -> None:
        """Lets the ranks end as after a script; LaunchError if they do not end in order."""
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
        """Nothing of the job is left."""
        launch.kill(self._process, self._marker)

    def _broken(self, what: str) -> LaunchError:
        self.kill()
        result = launch.collect(self._directory, max(self._np, 1), -1, 0)
        shutil.rmtree(self._directory, ignore_errors=True)
        return LaunchError(f"the job of {self._np} ranks that live on {what}\n{result.report()}")


_jobs: dict[int, _Job] = {}


def run(script: str | Path, np: int, args: Sequence[str | Path], timeout: float) -> LaunchResult:
    """launch.launch's for what is pooled."""
    if np not in (0, 2):
        raise ValueError(
            f"{script} is pooled on {np} ranks: a job of 2 and a plain process live on"
        )
    job = _jobs.pop(np, None) or _Job(np)
    result, lives = job.run(Path(os.path.abspath(script)), [str(a) for a in args], timeout)
    if lives:
        _jobs[np] = job
    return result


def end() -> None:
    """At the end of the tests. LaunchError if a job does not end in order."""
    while _jobs:
        _jobs.popitem()[1].end()
