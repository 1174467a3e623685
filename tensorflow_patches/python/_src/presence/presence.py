"""What this rank's script is doing, for the messages of ranks that wait for it, and for rank 0.

Rank 0 ends a run in which ranks wait for one another, and lets the others continue without a rank
that has no gradients to contribute (core/agreement/coordinator_waits.cc). A waiting thread submits
no other requests; that is true of its process only if no other thread uses the library.
"""

from __future__ import annotations

import threading
from typing import Any

from tensorflow.mpi import config
from tensorflow.mpi._src.runtime import c_api, group, hooks

_lock = threading.Lock()
# The threads that have called uses(), by ident; None: not created by Python.
_threads: dict[int, threading.Thread | None] = {}
_steps: Any = None  # a pointer to the number of steps in the library, which only reads it
_needs = ""  # from needs_all; kept until the process ends
_generation = 0  # the last one that follow() has seen


class _Own(threading.local):
    def __init__(self) -> None:
        self.doing: list[str] = []  # nested activities, innermost last


_own = _Own()


def uses() -> None:
    """Called when this thread trains or calls a collective; registers it the first time."""
    if threading.get_ident() not in _threads:
        _register_thread()


def _register_thread() -> None:
    ident = threading.get_ident()
    with _lock:
        # current_thread() would create, and keep, an object for each of TensorFlow's threads.
        own = (thread for thread in threading.enumerate() if thread.ident == ident)
        _threads[ident] = next(own, None)
    _update_thread_count()


def _update_thread_count() -> None:
    with _lock:
        for ident, thread in list(_threads.items()):
            if thread is not None and not thread.is_alive():
                del _threads[ident]
        several = len(_threads) > 1
    c_api.load().tfmpi_set_several_threads(several)


def alone() -> bool:
    """Whether this thread uses the library, and no other thread does or might start to."""
    if len(_threads) > 1:
        _update_thread_count()
    return len(_threads) == 1 and threading.get_ident() in _threads and not _others_live()


def _others_live() -> bool:
    """Whether Python has another thread that may yet train for the first time.

    Daemon threads do not count: they are our own, or belong to progress bars and profilers.
    """
    own = threading.get_ident()
    return any(thread.ident != own and not thread.daemon for thread in threading.enumerate())


def in_own_loop() -> bool:
    """Whether this thread is in a custom loop: not between `begin` and `end`."""
    return not _own.doing


def begin(what: str) -> None:
    """Notes that this thread is in `what`, such as "fit() of model 'm'", until `end`."""
    _own.doing.append(what)
    _report_activity()


def rename_activity(what: str) -> None:
    """Renames this thread's current activity, and resets its number of steps."""
    if _own.doing:
        _own.doing[-1] = what
        _report_activity()


def end() -> None:
    """Ends the activity that this thread began last."""
    _own.doing.pop()
    _report_activity()


def _report_activity() -> None:
    stepped(0)
    doing = _own.doing[-1] if _own.doing else ""
    c_api.load().tfmpi_set_doing(doing.encode())
    _report_needs(doing)


def needs_all(what: str) -> None:
    """Notes that this rank has `what`: with TF_MPI_FAULT=shrink, a death then ends the job."""
    global _needs
    _needs = what
    _report_needs(_own.doing[-1] if _own.doing else "")


def _report_needs(doing: str) -> None:
    if config.get("TF_MPI_FAULT") != "shrink":
        return
    what = doing or _needs
    why = f"{what} cannot continue with fewer ranks" if what else ""
    c_api.load().tfmpi_set_needs_all(why.encode())


def follow() -> bool:
    """Updates group.rank and group.size if other ranks have died.

    Call only where no earlier value of either is still in use, and not during an exchange. Returns
    whether they have changed.
    """
    global _generation
    if not hooks.active or config.get("TF_MPI_FAULT") != "shrink":
        return False
    now = int(c_api.load().tfmpi_generation())
    if now == _generation:
        return False
    _generation = now
    group.group_rank, group.group_size = c_api.topology()[:2]
    group.rank, group.size = group.group_rank, group.group_size
    return True


def stepped(steps: int) -> None:
    """Sets the number of steps done in this thread's current activity."""
    global _steps
    if group.forked_from is not None:
        return
    if _steps is None:
        _steps = c_api.load().tfmpi_steps()
    _steps[0] = steps
