"""What started this process, as its environment tells: the launchers' variables, and Slurm's."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Launcher:
    """What started this process, as its environment tells."""

    name: str
    size: int
    rank: int
    local_size: int = 0  # ranks on this node; 0: not known
    local_rank: int = -1  # -1: not known
    abis: tuple[str, ...] = ("openmpi", "mpich", "abi", "debian")  # that fit, in order
    joins: bool = True  # False: it has started tasks that no MPI can bring together

    @property
    def is_open_mpis(self) -> bool:
        """It gives ranks of other nodes the variables that its option -x names; others give all."""
        return self.abis == ("openmpi",)


@dataclasses.dataclass(frozen=True)
class _Variables:
    """How a launcher's ranks are known: by all variables of `marks`, and a size and a rank."""

    name: str
    size: str
    rank: str
    abis: tuple[str, ...]
    marks: tuple[str, ...] = ()
    local_size: str = ""
    local_rank: str = ""
    joins: bool = True


_ANY = ("openmpi", "mpich", "abi", "debian")
_PMI = ("mpich", "abi", "debian")  # which Open MPI does not speak
# The first that fits: a launcher may run inside of another's job.
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
        ("SLURM_PROCID", "PMI_FD"), "", "SLURM_LOCALID",
    ),
    _Variables("a launcher that speaks PMI", "PMI_SIZE", "PMI_RANK", _PMI),
    _Variables(
        "Slurm's srun --mpi=pmix", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", _ANY,
        ("PMIX_RANK",), "", "SLURM_LOCALID",
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
        return Launcher(
            one.name, size, rank, local_size, number(one.local_rank, -1), one.abis, one.joins
        )
    return None


def _slurm_tasks_here(environ: Mapping[str, str]) -> int:
    """How many of a step's tasks are on this node, from 2(x3),1 for four nodes; 0: not known."""
    counts: list[int] = []
    for part in environ.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match:
            counts += [int(match[1])] * int(match[2] or 1)
    node = environ.get("SLURM_NODEID", "")
    return counts[int(node)] if node.isdigit() and int(node) < len(counts) else 0


def library_folders(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Where a module, or the user, has the linker look first."""
    return [folder for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder]


# What MPIs' modules and environments set to their folder.
_MPI_FOLDERS = ("I_MPI_ROOT", "MPI_HOME", "MPI_ROOT", "OPAL_PREFIX", "MPICH_DIR", "CONDA_PREFIX")


def mpi_folders(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Where MPIs' own variables say that their libraries are."""
    roots = [environ[name] for name in _MPI_FOLDERS if environ.get(name)]
    found = [os.path.join(root, folder) for root in roots for folder in ("lib", "lib/release")]
    if environ.get("CRAY_MPICH_DIR"):  # its libmpi.so.12 is here
        found.insert(0, os.path.join(environ["CRAY_MPICH_DIR"], "lib-abi-mpich"))
    return found


_LAUNCHER_PREFIXES = (
    "OMPI_", "OPAL_", "PMIX_", "PMI_", "PRTE_", "SLURM_", "PALS_", "HYDI_", "MPI_LOCAL",
)  # fmt: skip


def without_launcher(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment less what launchers set, for a child that is no rank."""
    return {
        name: value
        for name, value in environ.items()
        if name.startswith("OMPI_ALLOW_") or not name.startswith(_LAUNCHER_PREFIXES)
    }


# Set by a rank for its children, which inherit the launcher's variables but are no ranks.
_STARTED_BY = "_TF_MPI_STARTED_BY"


_JOB = ("PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID")


def _job(environ: Mapping[str, str]) -> str:
    """What launchers tell a job's ranks by; "" if none says."""
    return " ".join(environ[name] for name in _JOB if name in environ)


def rank_of(theirs: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> int | None:
    """The rank of a process that was started with the environment `theirs`, if of our job."""
    own, other = launcher(environ), launcher(theirs)
    if own is None or other is None or not _job(environ) or _job(environ) != _job(theirs):
        return None
    return other.rank if own.size == other.size else None


def job() -> str:
    """The job of this process's launcher: the same for its ranks, another for any other; or ""."""
    return _job(os.environ)


def node_name(environ: Mapping[str, str] = os.environ) -> str:
    """This node, as its scheduler calls it."""
    return environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]


def scheduled_nodes(environ: Mapping[str, str] = os.environ) -> str:
    """The nodes that Slurm has given to this job, in its form; "" if it does not say."""
    return environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or ""


def mark_started(environ: Any = os.environ) -> None:
    """Notes in the environment that this process has become a rank, and of which job."""
    environ[_STARTED_BY] = f"{os.getpid()} {_job(environ)}"


# Of TensorFlow's two pools, and of libraries that use OpenMP. What the script sets by tf.config
# counts more.
_THREADS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")


def limit_threads(number: int, environ: Any = os.environ) -> None:
    """For pools of threads that are made later. A variable that is set stays as it is."""
    for name in _THREADS:
        environ.setdefault(name, str(number))


def started_by_ancestor(environ: Mapping[str, str] = os.environ) -> int | None:
    """The process that became the rank, if this one is a child of it.

    Not of a launcher that the rank has started: its ranks are a job of their own.
    """
    pid, _, job = environ.get(_STARTED_BY, "").partition(" ")
    if not pid.isdigit() or int(pid) == os.getpid() or job != _job(environ):
        return None
    return int(pid)
