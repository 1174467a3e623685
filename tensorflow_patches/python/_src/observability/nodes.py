"""`python -m tensorflow.mpi doctor --nodes`, under the launcher: checks every node before a job.

It must work even if some nodes do not answer, so the checks do without MPI: each rank checks its
node on its own, with averaging off, and writes its findings into a folder that all nodes share;
rank 0 reads those that are there at the deadline. Only if all have answered do the ranks start MPI,
for an allreduce with a time limit.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import stat
import statistics
import sys
import threading
import time
from typing import Any

import numpy as np
from tensorflow.mpi import config, errors
from tensorflow.mpi._src.lifecycle import engine
from tensorflow.mpi._src.messaging import collectives
from tensorflow.mpi._src.observability import machine, node_report
from tensorflow.mpi._src.runtime import c_api

_POLL_SECONDS = 0.1
_ALLREDUCE_SECONDS = 2.0
_TOGETHER_SECONDS = 30.0  # for MPI's start, the allreduce and MPI's end
_GRACE_SECONDS = 5.0  # how much longer than rank 0 the others wait, because rank 0 reports
_COUNT = 1 << 20  # elements of an allreduce; in float32 4 MB


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--nodes", action="store_true", help="under the launcher: checks every node before a job"
    )
    parser.add_argument(
        "--folder",
        default=".",
        help="with --nodes: a folder that all nodes share (default: this one)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=60,
        help="with --nodes: the time for all nodes to answer (default 60)",
    )
    parser.add_argument(
        "--hosts",
        default=config.scheduled_nodes(),
        help="with --nodes: the nodes that should answer, such as node[01-08]; default: Slurm's",
    )


def main(options: argparse.Namespace) -> int:
    """On rank 0 prints the report, writes failing_nodes.txt, and returns 1 if there is a fault."""
    launcher = config.launcher() or config.Launcher("none", 1, 0)
    exchange = _Exchange(options.folder, launcher.rank)
    begin = time.monotonic()
    exchange.put("found", machine.facts() | {"figures": machine.figures()})
    if launcher.rank != 0:
        return _on_other_rank(exchange, launcher, begin + options.seconds + _GRACE_SECONDS)
    try:
        return _on_rank_0(exchange, launcher, begin + options.seconds, options)
    finally:
        exchange.remove()


class _Exchange:
    """Files in a folder of this job and user that all ranks share."""

    def __init__(self, folder: str, rank: int) -> None:
        job = hashlib.sha256(f"{os.getuid()} {config.job()}".encode()).hexdigest()[:16]
        self._folder = os.path.join(os.path.abspath(folder), f".tensorflow-mpi-nodes-{job}")
        self._rank = rank
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._folder, 0o700)
        status = os.lstat(self._folder)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            raise PermissionError(
                f"'{self._folder}' belongs to another user: pass another --folder"
            )

    def put(self, what: str, value: Any) -> None:
        """Publishes this rank's `value` under the name `what`, atomically."""
        path = os.path.join(self._folder, f"{what}.{self._rank}")
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(value, file)
        os.replace(f"{path}.new", path)

    def get(self, what: str) -> dict[int, Any]:
        """The values published so far, by rank."""
        found = {}
        # Listed each time: a network file system may cache that a file does not exist.
        for name in os.listdir(self._folder):
            kind, _, rank = name.partition(".")
            if kind == what and rank.isdigit():
                with contextlib.suppress(OSError, ValueError):
                    with open(os.path.join(self._folder, name), encoding="utf-8") as file:
                        found[int(rank)] = json.load(file)
        return found

    def wait(self, what: str, ranks: int, deadline: float) -> dict[int, Any]:
        """Waits for the values of `ranks` ranks; at the deadline returns those that are there."""
        while len(found := self.get(what)) < ranks and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return found

    def remove_own(self) -> None:
        for name in os.listdir(self._folder):
            if name.endswith(f".{self._rank}"):
                os.unlink(os.path.join(self._folder, name))
        with contextlib.suppress(OSError):  # other ranks' files are there
            os.rmdir(self._folder)

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def _on_other_rank(exchange: _Exchange, launcher: config.Launcher, deadline: float) -> int:
    try:
        go = exchange.wait("go", 1, deadline)
    except OSError:  # rank 0 has ended and removed the folder
        return 0
    if go.get(0):
        with _killed_after(_TOGETHER_SECONDS + _GRACE_SECONDS):
            _run_allreduce(exchange, launcher)
    elif not go:
        exchange.remove_own()  # if rank 0 had ended already, this rank has made the folder anew
    return 0


def _on_rank_0(
    exchange: _Exchange, launcher: config.Launcher, deadline: float, options: argparse.Namespace
) -> int:
    size = launcher.size
    found = exchange.wait("found", size, deadline)
    findings = node_report.judge(found, size, node_report.expand(options.hosts))
    go = size > 1 and len(found) == size and len({one["wheel"] for one in found.values()}) == 1
    exchange.put("go", go)
    printed = _print_report(findings, [])  # now, because MPI may end this process
    if not go:
        why = "there is only one rank" if size == 1 else "not all ranks can take part"
        print(f"allreduce not tried: {why}", flush=True)
        return _end(findings)

    def give_up() -> None:
        node_report.judge_together(findings, found, exchange.get("sum"), size)
        _print_report(findings, printed)
        exchange.remove()

    with _killed_after(_TOGETHER_SECONDS, give_up):
        _run_allreduce(exchange, launcher)
        results = exchange.wait("sum", size, time.monotonic() + _GRACE_SECONDS)
    node_report.judge_together(findings, found, results, size)
    _print_report(findings, printed)
    return _end(findings)


def _print_report(findings: node_report.Findings, printed: list[str]) -> list[str]:
    """Prints the lines that are not in `printed`, and writes the names of failing nodes."""
    lines = findings.text()
    print("\n".join(line for line in lines if line not in printed), flush=True)
    with open("failing_nodes.txt", "w", encoding="utf-8") as file:
        file.write(node_report.exclusion(findings.failing))
    return lines


def _end(findings: node_report.Findings) -> int:
    """Prints the last line of the report; returns the exit code."""
    if not findings.faults:
        print("all nodes are OK", flush=True)
        return 0
    names = ", ".join(findings.failing)
    print(f"failing_nodes.txt: {names}" if names else "the failing nodes are not known", flush=True)
    return 1


@contextlib.contextmanager
def _killed_after(seconds: float, first: Any = lambda: None) -> Any:
    """Calls `first` and ends the process after `seconds`, because calls of MPI have no timeout."""

    def end() -> None:
        first()
        sys.stdout.flush()
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _run_allreduce(exchange: _Exchange, launcher: config.Launcher) -> None:
    """Starts MPI, runs allreduces, publishes the result or a fault, and ends MPI."""
    try:
        rank, size, _ = engine.connect(config.Gate(True, f"{launcher.name} started it", launcher))
        result = _allreduce(rank, size) | {"clock": _clock(), "fault": ""}
        result["transport"] = c_api.load().tfmpi_transport().decode()
    except Exception as error:
        result = {"fault": f"{type(error).__name__}: {error}"}
    exchange.put("sum", result)
    if not result["fault"]:
        buffer = c_api.error_buffer()
        if c_api.load().tfmpi_join(buffer) != errors.OK:
            exchange.put("sum", {"fault": f"could not end normally: {c_api.error_text(buffer)}"})


def _collective(kind: str, value: np.ndarray[Any, Any], label: str, **options: Any) -> Any:
    """One collective, with of_script=True because averaging is off here."""
    return collectives.run(kind, value, label, **options, of_script=True)


def _allreduce(rank: int, size: int) -> dict[str, Any]:
    """Runs allreduces for about _ALLREDUCE_SECONDS, the same number on all ranks."""
    value = np.full(_COUNT, rank + 1.0, np.float32)
    rounds = 3
    begin = time.perf_counter()
    for _ in range(rounds):
        _collective("allreduce", value, "doctor", op="sum")
    each = (time.perf_counter() - begin) / rounds
    longest = _collective("allreduce", np.array([each]), "doctor seconds", op="max")
    rounds = max(3, int(_ALLREDUCE_SECONDS / float(longest[0])))
    begin = time.perf_counter()
    for _ in range(rounds):
        total = _collective("allreduce", value, "doctor", op="sum")
    seconds = time.perf_counter() - begin
    if not (total == size * (size + 1) / 2).all():
        raise ArithmeticError("the allreduce's sum is wrong")
    return {"GB/s": rounds * value.nbytes / seconds / 1e9}


def _clock() -> float:
    """Seconds by which this node's clock is ahead of rank 0's, to about a millisecond."""
    offsets = []
    for _ in range(5):
        _collective("barrier", np.empty(0, np.uint8), "doctor barrier")
        now = np.array([time.time()])
        theirs = _collective("broadcast", now, "doctor clock", root=0)
        offsets.append(float(now[0] - theirs[0]))
    return statistics.median(offsets)
