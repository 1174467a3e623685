"""What a rank does before its script: strings hash alike, and TensorFlow's files are ours.

`tensorflow_mpi.pth`, which Python's `site` reads at every start, runs this file where a launcher
has started ranks. TensorFlow is not imported here, nor this package.

Python draws the key of its string hashes before it runs anything, so each rank has another, and
`list(set(words))` another order. So the interpreter is started anew, once, as the same process and
with the same arguments, but with PYTHONHASHSEED set. Nothing has been imported or read by then.
That is left out where PYTHONHASHSEED is set (`mpirun -x PYTHONHASHSEED=random` leaves each rank its
own), where Python ignores its environment (-E, -I), with averaging off or TF_MPI_SHARD=off, and
where the interpreter is part of another program. Then random/host.py says that hashes differ.

Ranks with TF_MPI_ENABLE=0 leave word of it for those of other nodes.

Where another distribution has overwritten TensorFlow's files (installation.py), ranks would run
stock TensorFlow, each for itself: `import tensorflow` fails, with the reason.

This reads the environment itself, as config takes longer to import than Python to start:
tests/tf/random/test_at_start.py compares the two.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any

_SEED = "0"  # not a random one: all ranks must know it before they can talk
_RESTARTED = "_TF_MPI_RESTARTED"
_JOB = ("PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID")
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


def _ranks(environ: Mapping[str, str]) -> int:
    """How many ranks the launcher has started; srun without MPI starts none."""
    known = [name for name in _SIZES if environ.get(name, "").isdigit()]
    if known[:1] == ["SLURM_STEP_NUM_TASKS"] and "PMIX_RANK" not in environ:
        return int(environ[known[0]]) if environ.get("TF_MPI_ENABLE", "").strip() == "1" else 1
    return int(environ[known[0]]) if known else 1


def ranks_share_work(environ: Mapping[str, str]) -> bool:
    """Whether this process will be one of several ranks that run one program."""
    return (
        _ranks(environ) > 1
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


def _fix_hash_seed() -> None:
    """Starts the interpreter anew if that makes hashes alike."""
    if "PYTHONHASHSEED" in os.environ or _RESTARTED in os.environ:
        return
    flags = sys.flags
    if not flags.hash_randomization or flags.ignore_environment:
        return
    if ranks_share_work(os.environ) and _is_python(sys.executable):
        environment = {**os.environ, "PYTHONHASHSEED": _SEED, _RESTARTED: "1"}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


class _Refusal:
    """On sys.meta_path: nobody imports a TensorFlow that is not ours without being told."""

    def __init__(self, why: str) -> None:
        self._why = why

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Raises ImportError for TensorFlow; leaves all else to others."""
        if name == "tensorflow":
            raise ImportError(self._why)


def off_marker(environ: Mapping[str, str]) -> str:
    """The file that ranks of a node with TF_MPI_ENABLE=0 leave for those of other nodes, to which
    Open MPI's mpirun does not pass that variable; "" if the job is on one node, or has no name."""
    size, here = _ranks(environ), environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "")
    job = environ.get("PMIX_NAMESPACE", "")
    if not here.isdigit() or int(here) >= size or not job:
        return ""
    name = "".join(c if c.isalnum() else "-" for c in f"{job}-{os.getuid()}")
    cache = environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "tensorflow-mpi", f"{name}.off")


def _tell_other_nodes() -> None:
    """That this node's ranks are off. As early as can be: the others look when they import us."""
    word = off_marker(os.environ)
    if not word or os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK") != "0" or _RESTARTED in os.environ:
        return
    try:
        os.makedirs(os.path.dirname(word), exist_ok=True)
        with open(word, "w", encoding="utf-8") as file:
            file.write(f"{os.uname().nodename} {os.getpid()}\n")
    except OSError:
        return
    import atexit

    owner = os.getpid()

    def take_back() -> None:
        if os.getpid() == owner and os.path.exists(word):
            os.unlink(word)

    atexit.register(take_back)


def _refuse_overwritten_files(ranks: int) -> None:
    names: dict[str, Any] = {
        "__name__": "_tensorflow_mpi_installation",
        "__file__": os.path.join(os.path.dirname(__file__), "installation.py"),
    }
    with open(names["__file__"], encoding="utf-8") as file:
        exec(file.read(), names)
    why = names["fault"]()
    if why is not None:
        sys.meta_path.insert(
            0,
            _Refusal(
                f"tensorflow.mpi: {why}, so each of these {ranks} ranks would train by itself. "
                f"Mend it: {names['remedy']()}  or set TF_MPI_ENABLE=0"
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
