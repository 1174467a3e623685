"""What this rank's script is doing: for the messages of ranks that wait for it, and for rank 0.

Rank 0 ends a run in which the ranks wait for one another, and lets the others go on without a rank
that has no gradients to give (core/agreement/coordinator_waits.cc). That a thread which waits asks
for nothing else holds of the process only if no other thread uses the library.
"""

from __future__ import annotations

import threading
from typing import Any

from tensorflow.mpi import config
from tensorflow.mpi._src.runtime import c_api, group, hooks

_lock = threading.Lock()
_threads: dict[int, threading.Thread | None] = {}  # by ident; None: none of Python's own
_steps: Any = None  # where the library reads how many have been done


class _Own(threading.local):
    def __init__(self) -> None:
        self.doing: list[str] = []  # the innermost last


_own = _Own()


def uses() -> None:
    """This thread trains, or asks for collectives."""
    if threading.get_ident() not in _threads:
        _add()


def _add() -> None:
    ident = threading.get_ident()
    with _lock:
        # current_thread() would keep an object for each thread of TensorFlow's.
        own = (thread for thread in threading.enumerate() if thread.ident == ident)
        _threads[ident] = next(own, None)
    _count()


def _count() -> None:
    with _lock:
        for ident, thread in list(_threads.items()):
            if thread is not None and not thread.is_alive():
                del _threads[ident]
        several = len(_threads) > 1
    c_api.load().tfmpi_set_several_threads(several)


def alone() -> bool:
    """Whether no thread but this one uses the library, or could begin to."""
    if len(_threads) > 1:
        _count()
    return len(_threads) == 1 and threading.get_ident() in _threads and not _others_live()


def _others_live() -> bool:
    """Whether Python has another thread that may be about to train for the first time.

    Daemons are not taken for one: our own, those of progress bars and profilers.
    """
    own = threading.get_ident()
    return any(thread.ident != own and not thread.daemon for thread in threading.enumerate())


def in_own_loop() -> bool:
    """Whether this thread is in no call of `begin`: in a loop of the script's own."""
    return not _own.doing


def begin(what: str) -> None:
    """This thread is in `what` until `end`: "fit() of model 'm'"."""
    _own.doing.append(what)
    _tell()


def begin_activity(what: str) -> None:
    """What this thread is in is now to be called so, and has done no steps."""
    if _own.doing:
        _own.doing[-1] = what
        _tell()


def end() -> None:
    """Of what this thread has begun last."""
    _own.doing.pop()
    _tell()


def _tell() -> None:
    stepped(0)
    doing = _own.doing[-1] if _own.doing else ""
    c_api.load().tfmpi_set_doing(doing.encode())
    _tell_needs(doing)


_needs = ""  # for as long as the process lives


def needs_all(what: str) -> None:
    """From now on this rank holds something that is right for as many ranks as there are now."""
    global _needs
    _needs = what
    _tell_needs(_own.doing[-1] if _own.doing else "")


def _tell_needs(doing: str) -> None:
    if config.get("TF_MPI_FAULT") != "shrink":
        return
    what = doing or _needs
    why = f"{what} cannot go on with fewer ranks" if what else ""
    c_api.load().tfmpi_set_needs_all(why.encode())


_generation = 0


def follow() -> bool:
    """group.rank and group.size become what they are since other ranks have died, if any have.

    Called where a caller reads both and nothing from before: not in the midst of an exchange.
    Returns whether they have changed.
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
    """So many steps of what this thread is in have been done."""
    global _steps
    if group.forked_from is not None:
        return
    if _steps is None:
        _steps = c_api.load().tfmpi_steps()
    _steps[0] = steps
