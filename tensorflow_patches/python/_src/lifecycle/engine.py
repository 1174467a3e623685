"""Starts and ends the engine, and with it this process's time as a rank."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import threading
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from tensorflow.mpi import _build_info, config, errors
from tensorflow.mpi._src.lifecycle import cores, ends, settings
from tensorflow.mpi._src.mpi import library as mpi_library
from tensorflow.mpi._src.presence import presence, reasons, watch
from tensorflow.mpi._src.runtime import c_api, group, hooks, log

_NCCL = "libnccl.so.2"
# How long, at most, a rank that stops with an error waits until rank 0 has received the error.
_REPORT_FAILURE_SECONDS = 5.0
# The same, plus the time in which the communication thread ends, which a dead rank may block.
_LEAVE_SECONDS = 15.0
# How long the interpreter's exit may make no progress, using no processor time, before the process
# ends: _FAILED_EXIT_SECONDS after a failure, _EXIT_SECONDS otherwise.
_FAILED_EXIT_SECONDS = 2.0
_EXIT_SECONDS = 15.0
# The longest timeout of the roll call.
_ROLL_CALL_SECONDS = 120.0

_pid = 0  # of the rank; a forked process has another one
_on_fork: list[Callable[[], None]] = []
_on_left_to_script: list[Callable[[], None]] = []
_left = False  # whether this rank has stopped with an error
_ending = threading.Lock()  # taken, for good, by the thread that leaves or joins
_after_end: list[Callable[[], None]] = []  # see after_the_end


class _AtEnd(NamedTuple):
    """The arguments of when_it_ends."""

    always: Callable[[str | None], None]
    in_order: Callable[[], None]
    report: Callable[[str], None]


_at_end: _AtEnd | None = None


def start(gate: config.Gate) -> None:
    """Makes this process a rank; called once, before TensorFlow's libraries are loaded.

    Raises ImportError, which says what to do.
    """
    global _pid
    rank, size, nodes = connect(gate)
    _pid = os.getpid()
    config.mark_started()
    group.activate(rank, size, c_api.apply_ops())
    atexit.register(_end)
    os.register_at_fork(after_in_child=_in_child)
    ends.when_a_thread_fails(_leave)
    watch.while_the_script_runs(rank, size)
    if rank == 0 and config.get("TF_MPI_LOG_LEVEL") != "warning":
        shape = config.given().get("TF_MPI_TOPOLOGY", "auto")
        given = "" if shape == "auto" else f" by TF_MPI_TOPOLOGY={shape}"
        log.say(
            f"averaging gradients over {_count(size, 'rank')} on {_count(nodes, 'node')}{given}, "
            f"{c_api.load().tfmpi_transport().decode()}, tensorflow {_build_info.VERSION}"
        )
    for line in config.renamed():
        log.once(line)
    if gate.launcher is not None:
        cores.share(gate.launcher)
        if rank == 0 and (idle := cores.idle(gate.launcher)) is not None:
            log.say(idle)


def connect(gate: config.Gate) -> tuple[int, int, int]:
    """Loads the library and connects the ranks; returns (rank, number of ranks, of nodes).

    Raises ImportError, which says what to do.
    """
    ranks = gate.launcher.size if gate.launcher is not None else 1
    error = c_api.error_buffer()
    library = c_api.load()
    _check_folder(gate)
    with watch.start(gate.launcher):
        code = library.tfmpi_start(_options(gate, ranks), error)
    if code != errors.OK:
        raise ImportError(_start_failed(gate, c_api.error_text(error)))
    rank, size, _, _, nodes = c_api.topology()
    if size != ranks:
        raise ImportError(
            f"{_started_by(gate)}, but {library.tfmpi_transport().decode()}, "
            f"{' and '.join(mpi_library.loaded().values())}, formed a group of {size}: the library "
            "and the launcher do not match. Use the launcher of this library, or load the library "
            "of this launcher (module load, LD_LIBRARY_PATH, TF_MPI_LIBRARY); or set "
            "TF_MPI_ENABLE=0"
        )
    return rank, size, nodes


def when_it_ends(
    always: Callable[[str | None], None],
    in_order: Callable[[], None],
    report: Callable[[str], None],
) -> None:
    """Registers functions to call at this rank's end.

    Args:
      always: called first, with the reason of a failure, or None.
      in_order: called before the rank joins, if there was no failure.
      report: called with the text of tfmpi_stats_report after the join.
    """
    global _at_end
    _at_end = _AtEnd(always, in_order, report)


def when_forked(function: Callable[[], None]) -> None:
    """Registers `function` to be called in each process that this rank forks, after the fork."""
    _on_fork.append(function)


def when_left_to_script(function: Callable[[], None]) -> None:
    """Registers `function` to be called by leave_data_to_script(), and so by leave_to_script()."""
    _on_left_to_script.append(function)


def leave_to_script() -> bool:
    """From here on the script averages, partitions its data and writes its files itself, as scripts
    for Horovod do, and the runtime does not. Returns False if averaging was off already."""
    if not hooks.active:
        return False
    c_api.load().tfmpi_leave_averages_to_script()
    group.leave_to_script()
    presence.needs_all("a script that uses Horovod's API")
    leave_data_to_script()
    return True


def leave_data_to_script() -> None:
    """Leaves the data, random numbers and, depending on the configuration, files to the script, but
    not the averages."""
    for function in _on_left_to_script:
        function()


def _in_child() -> None:
    """Runs in a forked process; the library turns itself off (runtime.cc)."""
    group.deactivate_in_child()
    for function in _on_fork:
        function()


def after_the_end(function: Callable[[], None]) -> None:
    """Registers `function` to be called when all ranks have joined, or this one has failed."""
    _after_end.append(function)


def check_kernels_were_seen() -> None:
    """Raises ImportError if TensorFlow's libraries were loaded before ours."""
    stats = c_api.stats()
    if stats["registrations"] == 0 or stats["decorated"] == 0:
        raise ImportError(
            "TensorFlow's libraries were loaded before tensorflow.mpi could see their kernels, so "
            "nothing would be averaged. Import tensorflow before the module that loads them, or "
            "set TF_MPI_ENABLE=0"
        )
    log.debug(f"saw {stats['registrations']} kernels, decorated {stats['decorated']}")


def _options(gate: config.Gate, ranks: int) -> c_api.Options:
    return c_api.Options(
        transport_library=_transport_library(gate).encode() if ranks > 1 else b"",
        settings=settings.text().encode() if ranks > 1 else b"",
        roll_call_timeout=_roll_call_seconds(),
        fusion_threshold=config.get("TF_MPI_FUSION_THRESHOLD"),
        stall_warning=config.get("TF_MPI_STALL_WARNING"),
        stall_timeout=config.get("TF_MPI_STALL_TIMEOUT"),
        collective_timeout=config.transfer_timeout(),
        deadlock_timeout=config.deadlock_timeout(),
        timeline=_timeline(gate).encode(),
        stats=int(config.get("TF_MPI_STATS")),
        ranks_per_node=_ranks_per_node(ranks),
        wire=c_api.WIRE[config.get("TF_MPI_COMPRESSION")],
        sparse=config.SPARSE_MODES.index(config.get("TF_MPI_SPARSE")),
        extras=",".join(config.get("TF_MPI_EXTRAS")).encode(),
        device_transport=config.DEVICE_TRANSPORTS.index(config.gpu_transport()),
        shares_gpu=int(config.nccl_shares_gpus()),
        cray_gpus=int(config.cray_takes_gpus()),
        nccl_library=_nccl_library().encode(),
        shrink_on_fault=int(config.get("TF_MPI_FAULT") == "shrink"),
    )


def _nccl_library() -> str:
    """NCCL from pip's nvidia packages if installed, otherwise the one that the linker finds."""
    given = config.nccl_library()
    if given:
        return given
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        packaged = os.path.join(folder, "nccl", "lib", _NCCL)
        if os.path.exists(packaged):
            return packaged
    return _NCCL


def _roll_call_seconds() -> float:
    """The timeout of the roll call; short, because after MPI_Init all ranks are running."""
    timeout = float(config.get("TF_MPI_STALL_TIMEOUT"))
    return min(timeout, _ROLL_CALL_SECONDS) if timeout else _ROLL_CALL_SECONDS


def _ranks_per_node(ranks: int) -> int:
    shape = config.get("TF_MPI_TOPOLOGY")
    if shape.nodes is not None and shape.nodes * shape.ranks_per_node != ranks:
        raise ImportError(
            f"TF_MPI_TOPOLOGY={shape.nodes}x{shape.ranks_per_node} is a group of "
            f"{shape.nodes * shape.ranks_per_node} ranks, but {_count(ranks, 'rank')} started; "
            "set it to auto, or start that many ranks"
        )
    return int(shape.ranks_per_node)


def _timeline(gate: config.Gate) -> str:
    """The file of TF_MPI_TIMELINE; ImportError on rank 0 if it cannot be written."""
    path: str = config.get("TF_MPI_TIMELINE")
    folder = os.path.dirname(path)
    if path and _is_rank_0(gate) and (os.path.isdir(path) or not os.access(folder, os.W_OK)):
        raise _not_accepted("TF_MPI_TIMELINE", path)
    return path


def _check_folder(gate: config.Gate) -> None:
    """Raises ImportError on rank 0 if the folder for saving at SIGTERM, perhaps hours later, is not
    writable."""
    folder: str = config.get("TF_MPI_SAVE_ON_SIGTERM")
    if not folder or not _is_rank_0(gate):
        return
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise _not_accepted("TF_MPI_SAVE_ON_SIGTERM", folder) from error
    if not os.access(folder, os.W_OK):
        raise _not_accepted("TF_MPI_SAVE_ON_SIGTERM", folder)


def _is_rank_0(gate: config.Gate) -> bool:
    return gate.launcher is None or gate.launcher.rank == 0


def _not_accepted(name: str, value: str) -> ImportError:
    accepted = config.PARAMETERS[name].accepted
    return ImportError(f"{name}={value!r} is not accepted; accepted: {accepted}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _transport_library(gate: config.Gate) -> str:
    try:
        return mpi_library.choose(gate.launcher)
    except mpi_library.NotUsable as error:
        raise ImportError(
            f"{_started_by(gate)}, but {error}. Load the MPI that belongs to the launcher (by "
            "module load, which sets LD_LIBRARY_PATH, or by pip install "
            f"{mpi_library.packages(gate.launcher)}), or use the launcher of the installed MPI "
            "(for Open MPI under Slurm: srun --mpi=pmix); or set TF_MPI_ENABLE=0"
        ) from None


def _started_by(gate: config.Gate) -> str:
    """What has started this rank, for messages."""
    program = mpi_library.launcher_program()
    return f"{gate.reason} (by {program})" if program else gate.reason


def _start_failed(gate: config.Gate, why: str) -> str:
    # MPI has started, but the ranks differ: `why` is a complete message.
    if "settings differ" in why or "different builds" in why or "TF_MPI_FAULT" in why:
        return why
    return f"{_started_by(gate)}, but MPI did not start: {why}"


def _leave(why: str) -> None:
    """Tells the other ranks not to wait for this one. Nothing may be submitted afterwards.

    Called at exit on the main thread, or by threading.excepthook on the training thread that
    failed; does nothing if the script has ended: a daemon thread's failure is then not the rank's.
    """
    global _left
    if os.getpid() == _pid and _ending.acquire(blocking=False):
        _left = True
        watch.declare_exit()
        with watch.failing(_LEAVE_SECONDS, group.group_rank, group.group_size):
            c_api.load().tfmpi_leave(why.encode(), _REPORT_FAILURE_SECONDS)


def _end() -> None:
    """Called at exit, and by os._exit(0). A forked child has no engine, and must not touch MPI."""
    if os.getpid() != _pid:
        return
    with contextlib.ExitStack() as last:
        last.callback(_finish)
        for function in reversed(_after_end):  # `last` calls them in reverse order
            last.callback(function)
        last.callback(watch.declare_exit)
        try:
            _leave_or_join()
        except BaseException as error:
            _leave(reasons.reason(error))
            raise


def exiting_at_once(original: Callable[[int], NoReturn]) -> Callable[[int], NoReturn]:
    """Wraps os._exit, which scripts call to skip the end of a library that hangs.

    With code 0 this rank ends as it does at the end of its script: MPI launchers end the whole job
    if a rank ends without MPI_Finalize, and the others may still be writing files.
    """

    def exit_at_once(status: int) -> NoReturn:
        try:
            if status == 0 and not _ending.locked():
                _end()
        finally:
            original(status)

    return exit_at_once


def _leave_or_join() -> None:
    library = c_api.load()
    why = ends.failure()
    if _at_end is not None:
        _at_end.always(why)
    if why is not None:
        _leave(why)
        return
    if _at_end is not None:
        _at_end.in_order()
    if not _ending.acquire(blocking=False):
        return
    error = c_api.error_buffer()
    with watch.end(group.group_rank, group.group_size):
        code = library.tfmpi_join(error)
    if code != errors.OK:
        log.say(f"could not end normally: {c_api.error_text(error)}")
    if _at_end is not None:
        _at_end.report(library.tfmpi_stats_report().decode())


def _finish() -> None:
    if _left and ends.thread_failed():  # the main thread may have ended normally
        log.flush()
        os._exit(1)
    if group.size > 1:
        ends.release(failed=_left)
    if group.group_size > 1:
        _limit_end()


def _limit_end() -> None:
    """Limits the rest of Python's exit, which may wait forever for a thread that it has stopped.

    Flushes first: a slow reader of the output may take longer than the limit.
    """
    log.flush()
    if _left:  # the failure has been reported already
        c_api.load().tfmpi_limit_end(ends.exit_code(), _FAILED_EXIT_SECONDS, b"")
        return
    line = (
        f"tensorflow.mpi rank {group.group_rank}/{group.group_size}: Python's exit has used no "
        f"processor time for {_EXIT_SECONDS:.0f} s. Python code that tf.data is still running, "
        "such as a generator, can block it forever, also in stock TensorFlow. This rank ends now"
    )
    c_api.load().tfmpi_limit_end(ends.exit_code(), _EXIT_SECONDS, line.encode())
