"""`python -m benchmarks.start_reads`: the file-system load of "import tensorflow".

    .venv/bin/python -m benchmarks.start_reads                  needs strace

Prints a row for a process of stock TensorFlow and a row for one of 2 ranks. "names" counts calls
that look up a name (open, stat and the like), "missing" those of them that fail, "files" the
different files opened, and "MB" their sizes, although libraries are read only as far as needed. If
many nodes import from one file system, it serves this load for each process. The last row is for a
node that unpacks its own copy (examples/cluster/README.md).
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

_CALLS = "open,openat,stat,lstat,newfstatat,statx,access,faccessat2,readlink,execve"
_CALL = re.compile(r'^\d+ +(?P<name>\w+)\([^"]*"(?P<path>[^"]*)".* = (?P<result>-?\d+)')
# Folders of the machine, not of the environment.
_OTHERS = ("/proc/", "/sys/", "/dev/", "/tmp/")


def trace(launcher: list[str], environ: dict[str, str]) -> list[str]:
    """The lines of strace for one process; for rank 0 if there are several."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "trace"
        words = [
            *("strace", "-f", "-qq", "-o", f"{path}.$RANK", "-e", f"trace={_CALLS}"),
            *(sys.executable, "-c", "'import tensorflow'"),
        ]
        shell = f"RANK=${{OMPI_COMM_WORLD_RANK:-0}}; exec {' '.join(words)}"
        subprocess.run(
            [*launcher, "sh", "-c", shell],
            check=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environ},
            stderr=subprocess.DEVNULL,
            timeout=300,
        )
        return Path(f"{path}.0").read_text(errors="replace").splitlines()


def row(lines: list[str]) -> tuple[int, int, int, float]:
    """A row of the table: names, missing, files, MB."""
    calls = [found for line in lines if (found := _CALL.match(line))]
    calls = [call for call in calls if call["path"] and not call["path"].startswith(_OTHERS)]
    missing = sum(int(call["result"]) < 0 for call in calls)
    opened = {
        os.path.realpath(call["path"])
        for call in calls
        if call["name"].startswith("open") and int(call["result"]) >= 0
    }
    files = [path for path in opened if os.path.isfile(path)]
    return len(calls), missing, len(files), sum(map(os.path.getsize, files)) / 1e6


def packed() -> float:
    """The size of this environment in one file, in megabytes."""
    with subprocess.Popen(
        ["tar", "-C", sys.prefix, "-cf", "-", "."], stdout=subprocess.PIPE
    ) as tar:
        assert tar.stdout is not None
        size = 0
        while block := tar.stdout.read(1 << 20):
            size += len(block)
    return size / 1e6


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args(arguments)
    print("| what | names | missing | files | MB |\n| --- | --- | --- | --- | --- |")
    mpirun = ["mpirun", "--oversubscribe", "-np", "2"]
    for what, launcher, environ in (
        ("stock", [], {"TF_MPI_ENABLE": "0"}),
        ("one of 2 ranks", mpirun, {}),
    ):
        names, missing, files, size = row(trace(launcher, environ))
        print(f"| {what} | {names:,} | {missing:,} | {files:,} | {size:,.0f} |")
    print(f"| a node's copy | 1 | 0 | 1 | {packed():,.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
