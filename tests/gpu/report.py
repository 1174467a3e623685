"""Runs everything that is tested on a real GPU: `python tests/gpu/report.py [--write FILE]`.

Run it with the Python that has the GPU wheel, and with its mpirun on PATH. Prints Markdown; --write
puts it between the markers of a page, such as docs/measurements/2026-11-27-gpu.md. Fails if a
training differs from one process's.
`--only IPC` (or staged, NCCL, CUDA-aware) covers one transport, between markers of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path

import equality

HERE = Path(__file__).resolve().parent
SHARED = {"TF_MPI_GPU_TRANSPORT": "ipc"}
STAGED = {"TF_MPI_GPU_TRANSPORT": "staged"}
# Becomes staged if the MPI library does not report that it is CUDA-aware.
AWARE = {"TF_MPI_GPU_TRANSPORT": "mpi"}
NCCL = {"TF_MPI_GPU_TRANSPORT": "nccl"}
ONE_GPU = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}


def _gpus() -> list[str]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    if shutil.which(query[0]) is None:
        sys.exit("report.py: nvidia-smi not found: run this on a machine with a GPU")
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()


def _run(ranks: int, script: str, *args: str, **environment: str) -> tuple[int, str]:
    """(exit code, output) of a script in this folder; ranks 0: one process with averaging off."""
    command = [sys.executable, str(HERE / script), *args]
    environ = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ, **environment}
    if ranks:
        command = ["mpirun", "--bind-to", "none", "--oversubscribe", "-np", str(ranks), *command]
        environ.pop("TF_FORCE_GPU_ALLOW_GROWTH", None)  # the product must detect this
    else:
        environ |= {"TF_MPI_ENABLE": "0", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    ended = subprocess.run(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=240, check=False,
    )  # fmt: skip
    if ended.returncode and script != "lost_rank.py":
        print(f"{script} on {ranks} ranks: exit code {ended.returncode}\n{ended.stdout[-3000:]}")
    return ended.returncode, ended.stdout


def _is_cuda_aware() -> bool:
    """Whether the MPI library reports that it is CUDA-aware, and a run on two ranks confirms it."""
    output = _run(2, "speed.py", **AWARE)[1]
    said = [line for line in output.splitlines() if "CUDA-aware" in line]
    print(*said, sep="\n", file=sys.stderr)
    return any("by CUDA-aware MPI on all ranks" in line for line in said)


def _equality(folder: Path, ways: list[tuple[str, int, dict[str, str]]]) -> tuple[list[str], int]:
    one = str(folder / "one.npz")
    wrong = _run(0, "cases.py", one)[0]
    table: dict[str, dict[str, str]] = {}
    for number, (way, ranks, environment) in enumerate(ways):
        print(f"{way} ...", file=sys.stderr, flush=True)
        ours = str(folder / f"{number}.npz")
        wrong += _run(ranks, "cases.py", ours, **environment)[0]
        for name, apart, right in equality.differences(one, ours):
            wrong += not right
            table.setdefault(name, {})[way] = apart if right else f"**{apart}**"
    heads = [way for way, _, _ in ways]
    lines = ["| training | " + " | ".join(heads) + " |", "| --- |" + " --- |" * len(heads)]
    for name, row in table.items():
        lines.append(f"| {name} | " + " | ".join(row.get(way, "missing") for way in heads) + " |")
    return lines, wrong


def _speed(ways: list[tuple[str, int, dict[str, str]]]) -> list[str]:
    lines = ["| | tensor | average | | copies there and back |", "| --- " * 5 + "|"]
    for way, ranks, environment in ways:
        output = _run(ranks, "speed.py", **environment)[1]
        lines += [f"| {way} {row}" for row in output.splitlines() if row.startswith("| ")]
    return lines


def _overlap(folder: Path) -> list[str]:
    """For the longest staged average of a trace, the time that its thread waited for copies."""
    trace = folder / "trace.json"
    _run(2, "speed.py", **STAGED, TF_MPI_TIMELINE=str(trace))
    events = json.loads(trace.read_text())
    spans = [e for e in (events["traceEvents"] if isinstance(events, dict) else events)
             if e.get("ph") == "X"]  # fmt: skip
    whole = max((e for e in spans if e["name"].startswith("allreduce")), key=lambda e: e["dur"])
    inside = [
        e for e in spans
        if (e["pid"], e["tid"]) == (whole["pid"], whole["tid"])
        and whole["ts"] <= e["ts"] and e["ts"] + e["dur"] <= whole["ts"] + whole["dur"] + 1
    ]  # fmt: skip
    spent = {name: sum(e["dur"] for e in inside if e["name"] == name) / 1e3
             for name in ("pack", "reduce", "unpack")}  # fmt: skip
    return [
        f"- A trace of one staged {whole['name']}, {whole['dur'] / 1e3:.1f} ms: "
        f"{spent['reduce']:.1f} ms for the exchange between",
        f"  the hosts, {spent['pack']:.1f} ms waiting for chunks from the GPU, "
        f"{spent['unpack']:.1f} ms enqueueing them back.",
    ]


def _lost_rank(ways: list[tuple[str, int, dict[str, str]]]) -> list[str]:
    lines = []
    for way, ranks, environment in ways:
        output = _run(ranks, "lost_rank.py", **environment)[1]
        killed = re.search(r"killed at ([0-9.]+)", output)
        took = f"{time.time() - float(killed[1]):.1f} s" if killed else "not reached"
        lines.append(f"- {way}: after a rank was killed, the job ended within {took}.")
    return lines


def report(only: str) -> tuple[str, int]:
    """The page, and the number of wrong trainings, for transports whose name contains `only`."""
    gpus = _gpus()
    nccl = NCCL if len(gpus) > 1 else NCCL | ONE_GPU
    ways = [("2 ranks, staged", 2, STAGED), ("2 ranks, NCCL", 2, nccl)]
    more = [("4 ranks, staged", 4, STAGED), ("1 rank", 1, {"TF_MPI_ENABLE": "1"})]
    if len(gpus) == 1:
        ways.insert(0, ("2 ranks, IPC", 2, SHARED))
        more.insert(0, ("4 ranks, IPC", 4, SHARED))
    if len(gpus) >= 4:
        more.append(("4 ranks, NCCL", 4, NCCL))
    if only in "CUDA-aware" and _is_cuda_aware():
        ways.append(("2 ranks, CUDA-aware MPI", 2, AWARE))
        more.insert(0, ("4 ranks, CUDA-aware MPI", 4, AWARE))
    elif only == "CUDA-aware":
        sys.exit("report.py: this MPI library is not CUDA-aware: use one that is")
    ways = [way for way in ways if only in way[0]]
    more = [way for way in more if only in way[0] or way[1] == 1]
    command = "python tests/gpu/report.py" + (f" --only {only}" if only else "")
    with tempfile.TemporaryDirectory() as folder:
        trainings, wrong = _equality(Path(folder), ways + more)
        overlap = _overlap(Path(folder)) if only in "staged" else []
    today = datetime.now(timezone.utc)
    lines = [
        f"{today:%Y-%m-%d}, {len(gpus)} x {gpus[0]}, {os.cpu_count()} cores;",
        f"`{command} --write FILE`. The largest difference of a",
        "weight from one process's, relative to the largest weight. The limit is",
        f"{equality.LIMIT:.0e}, in half precision {equality.LIMITS['mixed_precision']:.0e}.",
        "",
        *trainings,
        "",
        *_speed(ways + more[:1]),
        "",
        *overlap,
        *_lost_rank(ways),
    ]
    return "\n".join(lines), wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="a page with the markers")
    parser.add_argument("--only", default="", choices=("IPC", "staged", "NCCL", "CUDA-aware"))
    arguments = parser.parse_args()
    page = arguments.write
    text, wrong = report(arguments.only)
    print(text)
    if page is not None:
        name = " ".join(["report.py", arguments.only]).strip()
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, rest = page.read_text(encoding="utf-8").split(begin)
        after = rest.split(end)[1]
        page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
