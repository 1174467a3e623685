"""Which launcher started this process, from the launchers' and Slurm's environment variables."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from typing import Any

_ANY = ("openmpi", "mpich", "abi", "debian")


@dataclasses.dataclass(frozen=True)
class Launcher:
    """The launcher that started this process, according to the environment."""

    name: str
    size: int
    rank: int
    local_size: int = 0  # ranks on this node; 0: unknown
    local_rank: int = -1  # -1: unknown
    abis: tuple[str, ...] = _ANY  # the ABIs to try, in order
    joins: bool = True  # False: MPI cannot connect this launcher's tasks
    port: int = 0  # where srun listens, on the node that it runs on; 0: another launcher

    @property
    def is_open_mpis(self) -> bool:
        """Whether it is Open MPI's, which passes only the variables named by -x to other nodes."""
        return self.abis == ("openmpi",)


@dataclasses.dataclass(frozen=True)
class _Variables:
    """How to recognize a launcher: all variables in `marks`, a size and a rank are set."""

    name: str
    size: str
    rank: str
    abis: tuple[str, ...]
    marks: tuple[str, ...] = ()
    local_size: str = ""
    local_rank: str = ""
    joins: bool = True
    port: str = ""


_PMI = ("mpich", "abi", "debian")  # Open MPI 5 does not support PMI
# The first match counts, because a launcher may run inside another's job.
_LAUNCHERS = (
    _Variables(
        "Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", ("openmpi",),
        (), "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
    ),
    _Variables(
        "MPICH's or Intel MPI's mpiexec", "PMI_SIZE", "PMI_RANK", _PMI,
        ("MPI_LOCALNRANKS",), "MPI_LOCALNRANKS", "MPI_LOCALRANKID",
    ),
    _Variables(
        "PALS's mpiexec", "PMI_SIZE", "PMI_RANK", _PMI,
        ("PALS_RANKID",), "PMI_LOCAL_SIZE", "PMI_LOCAL_RANK",
    ),
    _Variables(
        "Slurm's srun --mpi=pmi2", "PMI_SIZE", "PMI_RANK", _PMI,
        ("SLURM_PROCID", "PMI_FD"), "", "SLURM_LOCALID", port="SLURM_SRUN_COMM_PORT",
    ),
    _Variables("a launcher that speaks PMI", "PMI_SIZE", "PMI_RANK", _PMI),
    _Variables(
        "Slurm's srun --mpi=pmix", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", _ANY,
        ("PMIX_RANK",), "", "SLURM_LOCALID", port="SLURM_SRUN_COMM_PORT",
    ),
    _Variables(
        "Slurm's srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", _ANY,
        (), "", "SLURM_LOCALID", joins=False,
    ),
)  # fmt: skip


def launcher(environ: Mapping[str, str] = os.environ) -> Launcher | None:
    """The launcher that started this process, or None."""

    def number(name: str, unknown: int) -> int:
        return int(environ[name]) if environ.get(name, "").isdigit() else unknown

    for one in _LAUNCHERS:
        size, rank = number(one.size, -1), number(one.rank, -1)
        if size < 0 or rank < 0 or not all(mark in environ for mark in one.marks):
            continue
        local_size = number(one.local_size, 0)
        if "SLURM" in one.local_rank:
            local_size = _slurm_tasks_here(environ)
        local_rank, port = number(one.local_rank, -1), number(one.port, 0)
        return Launcher(one.name, size, rank, local_size, local_rank, one.abis, one.joins, port)
    return None


def _slurm_tasks_here(environ: Mapping[str, str]) -> int:
    """The number of the step's tasks on this node, from a list such as 2(x3),1; 0: unknown."""
    counts: list[int] = []
    for part in environ.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match:
            counts += [int(match[1])] * int(match[2] or 1)
    node = environ.get("SLURM_NODEID", "")
    return counts[int(node)] if node.isdigit() and int(node) < len(counts) else 0


def library_folders(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The folders of LD_LIBRARY_PATH, where the linker looks first."""
    return [folder for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder]


# Variables that `module load` and conda set to the folder of an MPI.
_MPI_FOLDERS = ("I_MPI_ROOT", "MPI_HOME", "MPI_ROOT", "OPAL_PREFIX", "MPICH_DIR", "CONDA_PREFIX")


def mpi_folders(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The library folders that the variables of MPIs point to."""
    roots = [environ[name] for name in _MPI_FOLDERS if environ.get(name)]
    found = [os.path.join(root, folder) for root in roots for folder in ("lib", "lib/release")]
    if environ.get("CRAY_MPICH_DIR"):  # its libmpi.so.12 is here
        found.insert(0, os.path.join(environ["CRAY_MPICH_DIR"], "lib-abi-mpich"))
    return found


_LAUNCHER_PREFIXES = (
    "OMPI_", "OPAL_", "PMIX_", "PMI_", "PRTE_", "SLURM_", "PALS_", "HYDI_", "MPI_LOCAL",
)  # fmt: skip


def without_launcher(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment without launchers' variables, for a child that is not a rank."""
    return {
        name: value
        for name, value in environ.items()
        if name.startswith("OMPI_ALLOW_") or not name.startswith(_LAUNCHER_PREFIXES)
    }


# Set by a rank for its children, which inherit the launcher's variables but are not ranks.
_STARTED_BY = "_TF_MPI_STARTED_BY"

_JOB = ("PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID")


def job(environ: Mapping[str, str] = os.environ) -> str:
    """Identifies the job, the same for all its ranks; "" if none of the variables _JOB is set."""
    return " ".join(environ[name] for name in _JOB if name in environ)


def rank_of(theirs: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> int | None:
    """The rank of a process with the environment `theirs`; None if it may be of another job."""
    own, other = launcher(environ), launcher(theirs)
    if own is None or other is None or not job(environ) or job(environ) != job(theirs):
        return None
    return other.rank if own.size == other.size else None


def node_name(environ: Mapping[str, str] = os.environ) -> str:
    """This node's name, as the scheduler calls it."""
    return environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]


def scheduled_nodes(environ: Mapping[str, str] = os.environ) -> str:
    """The nodes that Slurm assigned to this job, in Slurm's form; "" if unknown."""
    return environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or ""


def mark_started(environ: Any = os.environ) -> None:
    """Notes this rank's process and job in the environment, for started_by_ancestor in children."""
    environ[_STARTED_BY] = f"{os.getpid()} {job(environ)}"


# For TensorFlow's two thread pools, and for OpenMP. tf.config takes precedence.
_THREADS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")


def limit_threads(number: int, environ: Any = os.environ) -> None:
    """Limits thread pools that are created later, unless the user has set the variables."""
    for name in _THREADS:
        environ.setdefault(name, str(number))


def started_by_ancestor(environ: Mapping[str, str] = os.environ) -> int | None:
    """The process id of the rank of which this process is a child or a later descendant, or None.

    None for the ranks of a launcher that a rank has started: they are a job of their own.
    """
    pid, _, its_job = environ.get(_STARTED_BY, "").partition(" ")
    if not pid.isdigit() or int(pid) == os.getpid() or its_job != job(environ):
        return None
    return int(pid)
