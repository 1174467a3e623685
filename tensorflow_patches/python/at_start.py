"""Runs before a rank's script: equalizes string hashes and checks TensorFlow's files.

`tensorflow_mpi.pth`, which Python's `site` reads at every start, runs this file if a launcher has
started ranks. Neither TensorFlow nor this package is imported here.

Python chooses its string hash key before it runs any code, so the key, and with it the order of
`list(set(words))`, differs by rank. The interpreter is therefore restarted once, as the same
process with the same arguments, but with PYTHONHASHSEED set, before the script begins. There is no
restart if PYTHONHASHSEED is set (`mpirun -x PYTHONHASHSEED=random` gives each rank its own key), if
Python ignores its environment (-E, -I), with averaging off or TF_MPI_SHARD=off, or if the
interpreter is embedded in another program. random/host.py warns if hashes differ.

Ranks with TF_MPI_ENABLE=0 leave a file that tells ranks of other nodes that averaging is off.

If another distribution has overwritten TensorFlow's files (installation.py), each rank would train
alone on stock TensorFlow; instead `import tensorflow` fails and says why.

This file reads the environment itself, because importing config takes longer than starting Python;
tests/tf/random/test_at_start.py checks that both come to the same result.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any

_SEED = "0"  # fixed: all ranks need the same seed before they can communicate
_RESTARTED = "_TF_MPI_RESTARTED"
_JOB = ("PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID")  # as in config/launchers.py
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


def _ranks(environ: Mapping[str, str]) -> int:
    """The number of ranks that the launcher started. Tasks of srun without MPI are ranks only with
    TF_MPI_ENABLE=1."""
    present = [name for name in _SIZES if environ.get(name, "").isdigit()]
    if present[:1] == ["SLURM_STEP_NUM_TASKS"] and "PMIX_RANK" not in environ:
        return int(environ[present[0]]) if environ.get("TF_MPI_ENABLE", "").strip() == "1" else 1
    return int(environ[present[0]]) if present else 1


def ranks_share_work(environ: Mapping[str, str]) -> bool:
    """Whether this process will be one of several ranks that run the same program."""
    return (
        _ranks(environ) > 1
        and environ.get("TF_MPI_ENABLE", "").strip() != "0"
        and environ.get("TF_MPI_SHARD", "").strip() != "off"
        and not _is_child_of_a_rank(environ)
    )


def _is_child_of_a_rank(environ: Mapping[str, str]) -> bool:
    """Like config.started_by_ancestor, for a process that has not become a rank itself."""
    _, _, job = environ.get("_TF_MPI_STARTED_BY", "").partition(" ")
    own_job = " ".join(environ[name] for name in _JOB if name in environ)
    return "_TF_MPI_STARTED_BY" in environ and job == own_job


def _is_python(path: str) -> bool:
    """Whether this process runs the program `path`, rather than embedding Python as a library."""
    try:
        return bool(path) and os.path.samefile(path, "/proc/self/exe")
    except OSError:
        return False


def _fix_hash_seed() -> None:
    """Restarts the interpreter if that gives all ranks the same hashes."""
    if "PYTHONHASHSEED" in os.environ or _RESTARTED in os.environ:
        return
    flags = sys.flags
    if not flags.hash_randomization or flags.ignore_environment:
        return
    if ranks_share_work(os.environ) and _is_python(sys.executable):
        environment = {**os.environ, "PYTHONHASHSEED": _SEED, _RESTARTED: "1"}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


class _Refusal:
    """Placed on sys.meta_path: makes importing a TensorFlow that is not ours an error."""

    def __init__(self, why: str) -> None:
        self._why = why

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Raises ImportError for TensorFlow; leaves other names to the next finder."""
        if name == "tensorflow":
            raise ImportError(self._why)


def off_marker(environ: Mapping[str, str]) -> str:
    """The file by which ranks with TF_MPI_ENABLE=0 notify ranks of other nodes, because Open MPI's
    mpirun does not pass that variable on; "" if the job is on one node, or has no name."""
    size, local_size = _ranks(environ), environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "")
    job = environ.get("PMIX_NAMESPACE", "")
    if not local_size.isdigit() or int(local_size) >= size or not job:
        return ""
    name = "".join(c if c.isalnum() else "-" for c in f"{job}-{os.getuid()}")
    cache = environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "tensorflow-mpi", f"{name}.off")


def _tell_other_nodes() -> None:
    """Records that this node's ranks are off, before ranks of other nodes import TensorFlow and
    look for the file."""
    marker = off_marker(os.environ)
    if (
        not marker
        or os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK") != "0"
        or _RESTARTED in os.environ  # a child of a rank that averages
    ):
        return
    try:
        os.makedirs(os.path.dirname(marker), exist_ok=True)
        with open(marker, "w", encoding="utf-8") as file:
            file.write(f"{os.uname().nodename} {os.getpid()}\n")
    except OSError:
        return
    import atexit

    owner = os.getpid()

    def remove_marker() -> None:
        if os.getpid() == owner and os.path.exists(marker):
            os.unlink(marker)

    atexit.register(remove_marker)


def _refuse_overwritten_files(ranks: int) -> None:
    namespace: dict[str, Any] = {
        "__name__": "_tensorflow_mpi_installation",
        "__file__": os.path.join(os.path.dirname(__file__), "installation.py"),
    }
    with open(namespace["__file__"], encoding="utf-8") as file:
        exec(file.read(), namespace)
    why = namespace["fault"]()
    if why is not None:
        sys.meta_path.insert(
            0,
            _Refusal(
                f"tensorflow.mpi: {why}, so each of these {ranks} ranks would train alone. "
                f"To fix this: {namespace['remedy']()}  or set TF_MPI_ENABLE=0"
            ),
        )


def at_start() -> None:
    """Called by tensorflow_mpi.pth."""
    ranks = _ranks(os.environ)
    if ranks > 1 and os.environ.get("TF_MPI_ENABLE", "").strip() == "0":
        _tell_other_nodes()
    elif ranks > 1:
        _fix_hash_seed()
        _refuse_overwritten_files(ranks)
