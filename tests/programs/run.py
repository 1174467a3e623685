"""Runs typical programs on ranks and in one process, and prints a table of what is equal.

    .venv/bin/python tests/programs/run.py -n 2 -n 3            # all
    .venv/bin/python tests/programs/run.py losses draws/rl_loop  # a room and a program; 2 ranks
    .venv/bin/python tests/programs/run.py --plans losses       # also what is split, and times

The programs do not mention ranks. Compares weights, histories, values and the files that a program
leaves; "far" is the largest difference, relative to the largest element of its array. The programs
of a room share a launch, which takes longer than most of them.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import itertools
import math
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "build")]

import numpy as np  # noqa: E402

from launch import LaunchError, LaunchResult, launch  # noqa: E402
from programs.report import files  # noqa: E402
from reference import reference  # noqa: E402

ROOMS = (
    "losses",
    "metrics",
    "steps",
    "models",
    "draws",
    "noise",
    "data",
    "adapted",
    "files",
    "exports",
    "optimizers",
    "loops",
    "tutorials",
)
CLOSE = 1e-4
# Programs that differ from one process, and why.
UNLIKE = {
    "files/callback_time_files": "during the run, a folder lists each rank's name of a file",
    "losses/masked_transformer": "the attention's key bias gets only rounding errors, from Adam",
}
SECONDS = 1800  # per room


def programs(wanted: list[str]) -> list[str]:
    """Names of programs: in all rooms, in the given rooms, or the given ones."""
    found = [f"{room}/{path.stem}" for room in ROOMS for path in sorted((HERE / room).glob("*.py"))]
    return [name for name in found if not wanted or {name, name.split("/")[0]} & set(wanted)]


def far(got: Any, one: Any) -> float:
    """The largest difference, relative to the largest element; infinite if not comparable."""
    if isinstance(one, dict):
        if not isinstance(got, dict) or set(got) != set(one):
            return math.inf
        return max((far(got[key], one[key]) for key in one), default=0.0)
    try:
        a, b = np.asarray(got, float), np.asarray(one, float)
    except (TypeError, ValueError):
        if not isinstance(one, list):
            return 0.0 if got == one else math.inf
        if not isinstance(got, list) or len(got) != len(one):
            return math.inf
        return max((far(x, y) for x, y in zip(got, one)), default=0.0)
    if a.shape != b.shape or (np.isnan(a) != np.isnan(b)).any():
        return math.inf
    known = ~np.isnan(b)
    if not known.any():
        return 0.0
    return float(np.abs(a[known] - b[known]).max() / max(np.abs(b[known]).max(), 1e-3))


def differences(got: dict[str, Any], one: dict[str, Any]) -> dict[str, float]:
    """The differences by name."""
    if "error" in got or "error" in one:
        return {"no result": math.inf}
    kinds = ("weights", "history", "values", "files")
    found = {kind: far(got.get(kind), one.get(kind)) for kind in kinds if kind in one}
    return found


def run(
    names: list[str], ranks: int, plans: bool = False
) -> Iterator[tuple[str, dict[str, float], str]]:
    """(program, differences of the worst rank, rank 0's lines) for programs in one launch.

    `plans`: of these lines, only the plan of each call; and the seconds of one process and of
    ranks.
    """
    text = b"".join((HERE / f"{name}.py").read_bytes() for name in names)
    words = [hashlib.sha256(text).hexdigest()[:16], *names]
    (alone,) = reference(HERE / "inside.py", args=words, timeout=SECONDS)
    with tempfile.TemporaryDirectory(prefix="programs-") as folder:
        env = {"PROGRAMS_FOLDER": folder}
        if plans:
            env["TF_MPI_LOG_LEVEL"] = "debug"
        ended = launch(HERE / "inside.py", ranks, args=words, env=env, timeout=SECONDS)
        for name in names:
            found: dict[str, float] = {}
            for result in results(ended):
                got = dict(result.get(name, {"error": "no result"}))
                got["files"] = files(Path(folder) / name)
                for kind, value in differences(got, alone[name]).items():
                    found[kind] = max(value, found.get(kind, 0.0))
            if plans:
                times = [one.get(name, {}).get("seconds", 0) for one in (alone, *results(ended))]
                yield name, found, f"{planned(ended, name)} | {times[0]} | {max(times[1:])}"
            else:
                yield name, found, said(ended, name)


def results(ended: LaunchResult) -> list[dict[str, Any]]:
    """Results by rank; empty for ranks that did not finish."""
    try:
        return ended.results
    except LaunchError:
        return [{}] * len(ended.stdout)


def said(ended: LaunchResult, name: str) -> str:
    """Our lines that rank 0 wrote while the program ran."""
    _, _, after = ended.stderr[0].partition(f"PROGRAM {name}\n")
    lines = after.partition("PROGRAM ")[0].splitlines()
    return " ".join(line for line in lines if line.startswith("tensorflow.mpi rank 0"))


def planned(ended: LaunchResult, name: str) -> str:
    """The number of calls of models whose batches were split, gathered or whole."""
    _, _, after = ended.stderr[0].partition(f"PROGRAM {name}\n")
    rows = re.findall(r" \| (\w+) +\| (split|gathered|whole) ", after.partition("PROGRAM ")[0])
    counts = collections.Counter(f"{call}: {batch}" for call, batch in rows)
    return ", ".join(f"{what} x{n}" if n > 1 else what for what, n in counts.items())


def cell(found: dict[str, float]) -> str:
    worst = max(found, key=lambda kind: found[kind])
    return f"{found[worst]:.0e}" if found[worst] <= CLOSE else f"**{found[worst]:.0e}**, {worst}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="*", help="rooms or programs; default: all")
    parser.add_argument("--plans", action="store_true", help="also print what was split, and times")
    parser.add_argument("-n", dest="ranks", type=int, action="append", help="ranks; 2")
    options = parser.parse_args()
    names, ranks = programs(options.programs), options.ranks or [2]
    cells: dict[str, list[str]] = {name: [] for name in names}
    lines: dict[str, str] = {}
    for number in ranks:
        for _, room in itertools.groupby(names, key=lambda name: name.split("/")[0]):
            for name, found, words in run(list(room), number, options.plans):
                cells[name].append(cell(found))
                lines[name] = words
                print(name, number, cells[name][-1], words, file=sys.stderr, flush=True)
    last = ["plan", "one process, s", "ranks, s"] if options.plans else ["a line"]
    print("|", " | ".join(["program", *(f"{number} ranks" for number in ranks), *last]), "|")
    print("| --- |" + " --- |" * (len(ranks) + len(last)))
    for name in names:
        said = lines[name] if options.plans else "yes" if lines[name] else ""
        print("|", " | ".join([name, *cells[name], said]), "|")
    return int(any("**" in one for row in cells.values() for one in row))


if __name__ == "__main__":
    sys.exit(main())
