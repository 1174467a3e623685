"""Third-party packages, with their own examples: one process and ranks, compared in a table.

    .venv/bin/python tests/others/run.py NAME ...          these; all if none is given
    .venv/bin/python tests/others/run.py --write NAME ...  also updates these rows of
                                                           docs/programs.md

programs.toml lists the packages. drivers/NAME.py is the script for a package: an example from its
documentation on small data that it generates or the package ships, which does not mention ranks.
Each package has its own environment in .cache/others/NAME, made once by uv from the wheel in
wheels/ and from what programs.toml requires. No code of a package is copied into this tree.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

import tomllib

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE.parent), str(ROOT / "build")]

from programs.run import CLOSE, far  # noqa: E402

ENVIRONMENTS = ROOT / ".cache" / "others"
PAGE = ROOT / "docs" / "programs.md"
SECONDS = 600  # per run
HEAD = """# Packages of others

Written by `tests/others/run.py --write`: each package's own example on one process and on {ranks}
ranks. "far" is the largest difference of weights, losses and predictions on any rank, relative to
the largest element of its array. The times are those of a machine with 2 cores that also did other
work: compare the two times of a row, not rows.

| program | far | one process | {ranks} ranks |
| --- | --- | --- | --- |
"""


@dataclasses.dataclass(frozen=True)
class Program:
    """A table of programs.toml."""

    name: str
    requires: list[str]  # for pip, pinned
    runs: str  # the example
    note: str = ""  # what a user must know
    variables: dict[str, str] = dataclasses.field(default_factory=dict)  # for the ranks

    @property
    def title(self) -> str:
        return self.requires[0].replace("==", " ")

    def described(self) -> str:
        text = f"- **{self.title}**: {self.runs}." + (f" {self.note}." if self.note else "")
        return textwrap.fill(text, 97, subsequent_indent="  ", break_on_hyphens=False)

    close: float = CLOSE  # tolerance for equality; `note` says why if it is not the default


def programs(wanted: list[str]) -> list[Program]:
    tables = tomllib.loads((HERE / "programs.toml").read_text())
    unknown = set(wanted) - set(tables)
    if unknown:
        raise SystemExit(f"no such program: {', '.join(sorted(unknown))}; {', '.join(tables)}")
    return [
        Program(name, **table) for name, table in tables.items() if not wanted or name in wanted
    ]


def environment(program: Program) -> Path:
    """Its Python; created again if the wheel or its requirements have changed."""
    wheels = sorted((ROOT / "wheels").glob("*cpu-cp3*.whl"), key=os.path.getmtime)
    if not wheels:
        raise SystemExit("no CPU wheel in wheels/: ./install.sh makes it")
    folder = ENVIRONMENTS / program.name
    python, made = folder / "bin" / "python", folder / "made"
    wheel = hashlib.sha256(wheels[-1].read_bytes()).hexdigest()
    text = "\n".join([wheel, *program.requires])
    if made.exists() and made.read_text() == text:
        return python
    uv = [sys.executable, "-m", "uv"]
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([*uv, "venv", "-q", "--python", sys.executable, folder], check=True)
    ours = f"tensorflow[openmpi] @ file://{wheels[-1]}"
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as overrides:
        # Also if a package pins another TensorFlow; tf_keras belongs to one minor version.
        minor = ".".join(wheels[-1].name.split("-")[1].split(".")[:2])
        overrides.write(f"{ours}\ntf-keras~={minor}.0\n")
        overrides.flush()
        install = [*uv, "pip", "install", "-q", "--python", str(python)]
        install += ["--overrides", overrides.name]
        subprocess.run([*install, ours, *program.requires], check=True)
    made.write_text(text)
    return python


def results(program: Program, python: Path, ranks: int) -> tuple[list[Any], float, list[str]]:
    """Each rank's values, the seconds, and our lines; ranks 0 means one process."""
    with tempfile.TemporaryDirectory(prefix=f"others-{program.name}-") as name:
        work, out = Path(name) / "work", Path(name) / "out"
        work.mkdir()
        out.mkdir()
        variables = {
            "OTHERS_OUT": str(out),
            "PYTHONPATH": str(HERE),
            "PATH": f"{python.parent}:{os.environ['PATH']}",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "TF_NUM_INTRAOP_THREADS": "1",
            "TF_NUM_INTEROP_THREADS": "1",
            "MPLBACKEND": "agg",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }
        command = [str(python), "-P", str(HERE / "drivers" / f"{program.name}.py")]
        if ranks:
            launcher = [str(python.parent / "mpirun"), "-np", str(ranks), "--oversubscribe"]
            command = [*launcher, *command]
            variables |= program.variables
        else:
            variables["TF_MPI_ENABLE"] = "0"
        begin = time.monotonic()
        ended = subprocess.run(
            command,
            cwd=work,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        seconds = time.monotonic() - begin
        if ended.returncode:
            raise RuntimeError(f"exit code {ended.returncode}\n{ended.stderr[-6000:]}")
        said = [
            line for line in ended.stderr.splitlines() if line.startswith("tensorflow.mpi rank")
        ]
        found = [json.loads(path.read_text()) for path in sorted(out.glob("*.json"))]
    if len(found) != max(ranks, 1):
        raise RuntimeError(f"{len(found)} of {max(ranks, 1)} finished\n{ended.stderr[-6000:]}")
    return found, seconds, said[1:]  # the first line names MPI


def row(program: Program, ranks: int) -> tuple[bool, str, list[str]]:
    """(whether it is equal, its row, the ranks' lines)."""
    python = environment(program)
    (one,), alone, _ = results(program, python, 0)
    found, together, said = results(program, python, ranks)
    worst = max(far(got, one) for got in found)
    equal = worst <= program.close
    cells = [
        program.title,
        f"{worst:.0e}" if equal else f"**{worst:.0e}**",
        f"{alone:.0f} s",
        f"{together:.0f} s",
    ]
    return equal, f"| {' | '.join(cells)} |", said


def written(rows: dict[str, str], ranks: int) -> str:
    """The page: for each program its new row, else its present one."""
    old = {
        line.split("|")[1].strip(): line for line in PAGE.read_text().splitlines() if "|" in line
    }
    everything = programs([])
    missing = [program.name for program in everything if program.title not in old | rows]
    if missing:
        raise SystemExit(f"never run as they are pinned now: {', '.join(missing)}")
    lines = [(old | rows)[program.title] for program in everything]
    texts = [program.described() for program in everything]
    return "\n".join([HEAD.format(ranks=ranks) + "\n".join(lines), "", *texts, ""])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("programs", nargs="*")
    parser.add_argument("-n", dest="ranks", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--write", action="store_true", help=f"{PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    rows, failed = {}, []
    chosen = programs([] if options.programs == ["all"] else options.programs)
    for program in chosen:
        try:
            equal, line, said = row(program, options.ranks)
        except (RuntimeError, subprocess.SubprocessError) as error:
            equal, line, said = False, f"| {program.title} | **{type(error).__name__}** | | |", []
            print(f"{program.name}: {error}", file=sys.stderr, flush=True)
        rows[program.title] = line
        failed += [] if equal else [program.name]
        print(line, *said, sep="\n    ", flush=True)
    if options.write:
        PAGE.write_text(written(rows, options.ranks))
    if failed:
        print(f"not equal: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
