"""Whether gradients are averaged in this process, from `TF_MPI_ENABLE` and the launcher."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Mapping, Sequence

from tensorflow.mpi.config.launchers import Launcher, launcher, started_by_ancestor
from tensorflow.mpi.config.values import check, get


@dataclasses.dataclass(frozen=True)
class Gate:
    """Whether gradients are averaged in this process, and why."""

    on: bool
    reason: str
    launcher: Launcher | None
    warns: bool = False  # whether to print the reason, because the user expects averages


_OFF_FILE_SECONDS = 600  # a job's ranks start within this time; an older file is another job's


def is_off_elsewhere(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether ranks of this job on another node were started with TF_MPI_ENABLE=0, which Open MPI's
    mpirun does not pass on. They leave a file (at_start.py), which is visible here if the nodes
    share the user's home. A file that names an ended process of this node is left over from another
    job."""
    found, job = launcher(environ), environ.get("PMIX_NAMESPACE", "")
    if found is None or not job or not 0 < found.local_size < found.size:
        return False
    name = "".join(c if c.isalnum() else "-" for c in f"{job}-{os.getuid()}")
    cache = environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    try:
        with open(os.path.join(cache, "tensorflow-mpi", f"{name}.off"), encoding="utf-8") as file:
            host, _, process = file.read().strip().rpartition(" ")
            written = os.fstat(file.fileno()).st_mtime
    except OSError:
        return False
    if host == os.uname().nodename and not os.path.exists(f"/proc/{process}"):
        return False
    return abs(time.time() - written) < _OFF_FILE_SECONDS


def _looks_at_nodes(words: Sequence[str]) -> bool:
    """Whether the command `words` is `python -m tensorflow.mpi doctor --nodes`, which checks each
    node on its own."""
    if "tensorflow.mpi" not in words:
        return False  # as in an embedded interpreter, which has no words
    place = words.index("tensorflow.mpi")
    return "-m" in words[:place][-1:] and {"doctor", "--nodes"} <= set(words[place:])


def gate(environ: Mapping[str, str] = os.environ) -> Gate:
    """Decides by `TF_MPI_ENABLE` and the launcher. Raises ConfigError for invalid parameters."""
    enable = get("TF_MPI_ENABLE", environ)
    found = launcher(environ)
    if _looks_at_nodes(sys.orig_argv):
        return Gate(False, "doctor --nodes checks each node on its own", found)
    if enable == "0":
        return Gate(False, "TF_MPI_ENABLE=0", found)
    check(environ)
    ancestor = started_by_ancestor(environ)
    if ancestor is not None and found is not None:
        why = f"this process is a child of process {ancestor}, which is the rank"
        return Gate(False, why, found, warns=True)
    if enable == "1":
        return Gate(True, "TF_MPI_ENABLE=1", found)
    if is_off_elsewhere(environ):
        return Gate(False, "ranks on another node were started with TF_MPI_ENABLE=0", found)
    if found is None:
        return Gate(False, "no launcher started this process", None)
    if found.size == 1:
        return Gate(False, f"{found.name} started one rank", found)
    if not found.joins:
        return Gate(
            False,
            f"{found.name} started {found.size} tasks that know nothing of each other; to train "
            "together, start them with srun --mpi=pmix, or --mpi=pmi2 for an MPICH",
            found,
            warns=found.rank == 0,
        )
    return Gate(True, f"{found.name} started {found.size} ranks", found)
