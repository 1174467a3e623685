"""How this process ends: normally, or by a failure, and why.

Only a normal end, with exit code 0, lets the other ranks continue without this one. An atexit
function cannot see the exit code, and packages replace sys.excepthook, so this module looks where
the interpreter itself looks (docs/decisions/003-ends.md):

- an uncaught exception is sys.last_value, whose traceback begins in the main module;
- of the SystemExit that ends it, the interpreter reads the attribute `code` with no Python frame on
  the stack.

A failing rank ends quickly: objects created by imports are hidden from the garbage collector, which
would otherwise spend a second on them when Python exits. The script's own objects are finalized as
usual; if the rank ends normally, all objects are.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

from tensorflow.mpi._src.interpose import hooking
from tensorflow.mpi._src.presence import peers, presence, reasons
from tensorflow.mpi._src.runtime import log

_KERAS = ("keras", "tf_keras")
_DEADLOCK = "the ranks wait for one another"  # core/agreement/coordinator_waits.cc
_NAMED = 4  # ranks named in a message
_BEGINNINGS = ("<module>", "_run_module_as_main")  # outermost frames: of a script, of python -m

_exit_code: Any = 0  # SystemExit.code as the interpreter read it
_uncaught: BaseException | None = None
_thread_failure: str | None = None  # how a training thread has failed
_thread = threading.local()  # .trains: whether the thread has computed gradients
_leave: Any = None  # from when_a_thread_fails


def install() -> None:
    """Called once, before TensorFlow's Python modules are imported."""
    for module in (*_KERAS, hooking.LAST_OF_KERAS):  # TensorFlow imports these last
        hooking.when_imported(module, lambda _: gc.freeze())


def release(failed: bool) -> None:
    """Called at exit: decides which objects Python finalizes."""
    if not failed:
        gc.unfreeze()
        return
    # At the end Python clears the namespace of a module that is still referenced. Without that
    # reference, the script's functions, which are frozen and not collected, would keep its objects
    # alive.
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in ("tensorflow", *_KERAS):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(module))


def thread_trains() -> None:
    """Notes that this thread computes gradients: if it fails, so does the rank."""
    _thread.trains = True
    presence.uses()


def failure() -> str | None:
    """Why the process fails, in one line; None if it ends normally. Called once, at exit: it prints
    explanations."""
    if _thread_failure is not None:
        return _thread_failure
    error = _uncaught or _last_error()
    if error is not None:
        return reasons.reason(error) + _explained(error)
    if _exit_code in (None, 0):
        return None
    if isinstance(_exit_code, int):
        return f"its script exited with code {_exit_code}"
    return f"its script exited: {_exit_code}".splitlines()[0][:300]


def exit_code() -> int:
    """Called at exit: the code with which the interpreter is about to exit."""
    if _thread_failure is not None:
        return 1
    error = _uncaught or _last_error()
    if error is not None:
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    if _exit_code is None:
        return 0
    return _exit_code & 0xFF if isinstance(_exit_code, int) else 1


def other_scripts(error: BaseException) -> str | None:
    """Which scripts the ranks of this node run, if `error` says that ranks wait for one another and
    the scripts differ; otherwise None."""
    if _DEADLOCK not in str(error):
        return None
    scripts = {rank: peer.script for rank, peer in peers.Node().peers().items()}
    if len(set(scripts.values())) < 2:
        return None
    listed = ", ".join(f"rank {rank} {script}" for rank, script in list(scripts.items())[:_NAMED])
    return f"the ranks run different scripts: {listed}. All ranks must run the same script"


_explanations: list[Callable[[BaseException], str | None]] = [other_scripts]


def explain_by(explain: Callable[[BaseException], str | None]) -> None:
    """Registers `explain`: after an uncaught error its result is printed and sent to the others."""
    _explanations.append(explain)


def _explained(error: BaseException) -> str:
    found = [why for why in (explain(error) for explain in _explanations) if why is not None]
    for why in found:
        log.say(why)
    return "".join(f" ({why})" for why in found)


def noting_uncaught(previous: Any) -> Any:
    """Wraps sys.excepthook. Ignores calls by the script, which may show an exception that it has
    caught, or that has ended a thread that does not train: their outermost frame is that of the
    main module or of the thread."""

    def hook(kind: Any, error: BaseException, traceback: Any) -> None:
        global _uncaught
        frame = sys._getframe()
        while frame.f_back is not None:
            frame = frame.f_back
        outermost = frame.f_code.co_name
        in_thread = outermost == "_bootstrap" and not getattr(_thread, "trains", False)
        if outermost in _BEGINNINGS or in_thread:
            return previous(kind, error, traceback)
        _uncaught = error
        cause = reasons.another_ranks_failure(error)
        if cause is None:
            previous(kind, error, traceback)
        else:  # that rank shows its own traceback
            log.say(f"ends, because {cause}")

    return hook


def _last_error() -> BaseException | None:
    """The exception that ended the script, if another package's excepthook has shown it."""
    error: BaseException | None = getattr(sys, "last_value", None)
    if error is None or error.__traceback__ is None or sys.flags.interactive or sys.flags.inspect:
        return None
    frame = error.__traceback__.tb_frame
    begins = frame.f_code.co_name in _BEGINNINGS and frame.f_back is None
    return error if begins else None


def noting_failed_threads(previous: Any) -> Any:
    """Wraps threading.excepthook."""

    def hook(args: Any) -> None:
        global _thread_failure
        if getattr(_thread, "trains", False) and args.exc_type is not SystemExit:
            name = args.thread.name if args.thread is not None else "a thread"
            _thread_failure = f"in {name}, which trains: {reasons.reason(args.exc_value)}"
        previous(args)
        if _thread_failure is not None and _leave is not None:
            _leave(_thread_failure)

    return hook


def when_a_thread_fails(leave: Any) -> None:
    """Registers `leave(why)`, to be called on a training thread that ends by an exception."""
    global _leave
    _leave = leave


def thread_failed() -> bool:
    return _thread_failure is not None


class _Code:
    """Replaces SystemExit.code: behaves the same, and notes the code that the interpreter reads."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __get__(self, error: Any, owner: Any = None) -> Any:
        if error is None:
            return self
        code = self._original.__get__(error, owner)
        if sys._getframe().f_back is None:
            global _exit_code
            _exit_code = code
        return code

    def __set__(self, error: Any, code: Any) -> None:
        self._original.__set__(error, code)


def noting_code(original: Any) -> Any:
    """Wraps SystemExit.code."""
    return _Code(original)


def leaving_python(_exit: Any) -> Any:
    """Replaces sys.exit, which before Python 3.12 creates no SystemExit object for _Code to see."""

    def leave_python(status: Any = None, /) -> None:
        raise SystemExit(status)

    return leave_python
