"""Strings hash alike on all ranks, so that their sets have one order.

Python draws the key of its string hashes before it runs anything, so each rank has another, and
`list(set(words))` another order. `tensorflow_mpi.pth`, which Python's `site` reads at every start,
runs this file where a launcher has started ranks. It starts the interpreter anew, once, as the same
process and with the same arguments, but with PYTHONHASHSEED set. Nothing has been imported or read
by then. TensorFlow is not imported here, nor this package.

It does nothing where PYTHONHASHSEED is set (`mpirun -x PYTHONHASHSEED=random` leaves each rank its
own), where Python ignores its environment (-E, -I), with averaging off or TF_MPI_SHARD=off, and
where the interpreter is part of another program. Then draws/host.py says that hashes differ.

It reads the environment itself, as config.py takes longer to import than Python to start:
tests/tf/draws/test_hash_order.py compares the two.
"""

import os
import sys
from collections.abc import Mapping

_SEED = "0"  # not a random one: all ranks must know it before they can talk
_RESTARTED = "_TF_MPI_RESTARTED"
_JOB = ("PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID")
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


def ranks_share_work(environ: Mapping[str, str]) -> bool:
    """Whether this process will be one of several ranks that run one program."""
    size = next((environ[name] for name in _SIZES if environ.get(name, "").isdigit()), "1")
    return (
        int(size) > 1
        and environ.get("TF_MPI_ENABLE", "").strip() != "0"
        and environ.get("TF_MPI_SHARD", "").strip() != "off"
        and not _is_child_of_a_rank(environ)
    )


def _is_child_of_a_rank(environ: Mapping[str, str]) -> bool:
    """As config.started_by_ancestor tells, before this process is a rank itself."""
    _, _, job = environ.get("_TF_MPI_STARTED_BY", "").partition(" ")
    known = " ".join(environ[name] for name in _JOB if name in environ)
    return "_TF_MPI_STARTED_BY" in environ and job == known


def _is_python(path: str) -> bool:
    """Whether `path` is the program that this process runs, not a library in another one."""
    try:
        return bool(path) and os.path.samefile(path, "/proc/self/exe")
    except OSError:
        return False


def restart() -> None:
    """Starts the interpreter anew if that makes hashes alike."""
    if "PYTHONHASHSEED" in os.environ or _RESTARTED in os.environ:
        return
    flags = sys.flags
    if not flags.hash_randomization or flags.ignore_environment:
        return
    if ranks_share_work(os.environ) and _is_python(sys.executable):
        environment = {**os.environ, "PYTHONHASHSEED": _SEED, _RESTARTED: "1"}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
