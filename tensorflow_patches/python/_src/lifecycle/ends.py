"""How this process ends: well, or as a failure, and of what.

Only an end in order, with exit code 0, lets the other ranks go on without this one. Read once, at
exit, by engine.py. An atexit function is not told the exit code, and packages replace
sys.excepthook; so this looks where the interpreter itself looks (docs/decisions/003-ends.md):

- an exception that nobody caught is sys.last_value, whose traceback begins in the main module;
- the interpreter reads the attribute `code` of the SystemExit that ends it, from no Python frame.

A rank that fails ends soon: what the imports have made is kept from the garbage collector, which
takes a second of a processor for it when Python ends. What the script has made ends as ever. So
does all of it where the rank ends well.
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
_WAIT = "the ranks wait for one another"  # core/agreement/coordinator_waits.cc
_NAMED = 4  # ranks
_BEGINNINGS = ("<module>", "_run_module_as_main")  # of a script, and of python -m

_exit_code: Any = 0
_uncaught: BaseException | None = None
_thread_failure: str | None = None
_thread = threading.local()  # .trains: it has computed gradients


def install() -> None:
    """Called once, before TensorFlow's Python modules are imported."""
    for module in (*_KERAS, hooking.LAST_OF_KERAS):  # which TensorFlow imports last
        hooking.when_imported(module, lambda _: gc.freeze())


def release(failed: bool) -> None:
    """At exit: what Python's end collects."""
    if not failed:
        gc.unfreeze()
        return
    # A module that is still referred to is emptied in the end. Else what the script has made would
    # be kept by its own functions, which were there before TensorFlow and are not collected.
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in ("tensorflow", *_KERAS):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(module))


def thread_trains() -> None:
    """This thread computes gradients: if it fails, so does the rank."""
    _thread.trains = True
    presence.uses()


def failure() -> str | None:
    """At exit: why this is no end in order, in one line; None if it is."""
    if _thread_failure is not None:
        return _thread_failure
    error = _uncaught or _last_error()
    if error is not None:
        return reasons.reason(error) + _explained(error)
    if _exit_code in (None, 0):
        return None
    if isinstance(_exit_code, int):
        return f"its script has ended with exit code {_exit_code}"
    return f"its script has ended: {_exit_code}".splitlines()[0][:300]


def exit_code() -> int:
    """At exit: the code with which the interpreter is about to end."""
    if _thread_failure is not None:
        return 1
    error = _uncaught or _last_error()
    if error is not None:
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    if _exit_code is None:
        return 0
    return _exit_code & 0xFF if isinstance(_exit_code, int) else 1


def other_scripts(error: BaseException) -> str | None:
    """Of ranks that wait for one another: which scripts they run, if not one, as far as is seen."""
    if _WAIT not in str(error):
        return None
    scripts = {rank: peer.script for rank, peer in peers.Node().peers().items()}
    if len(set(scripts.values())) < 2:
        return None
    listed = ", ".join(f"rank {rank} {script}" for rank, script in list(scripts.items())[:_NAMED])
    return f"the ranks run different scripts: {listed}. All ranks must run one"


_explanations: list[Callable[[BaseException], str | None]] = [other_scripts]


def explain_by(explain: Callable[[BaseException], str | None]) -> None:
    """What `explain` says of an exception that nobody caught follows it, and tells other ranks."""
    _explanations.append(explain)


def _explained(error: BaseException) -> str:
    found = [why for why in (explain(error) for explain in _explanations) if why is not None]
    for why in found:
        log.say(why)
    return "".join(f" ({why})" for why in found)


def noting_uncaught(previous: Any) -> Any:
    """Of sys.excepthook."""

    def hook(kind: Any, error: BaseException, traceback: Any) -> None:
        global _uncaught
        _uncaught = error
        cause = reasons.of_another_rank(error)
        if cause is None:
            previous(kind, error, traceback)
        else:  # whose own traceback is that rank's to show
            log.say(f"ends, because {cause}")

    return hook


def _last_error() -> BaseException | None:
    """What ended the script, if another package's excepthook has shown it."""
    error: BaseException | None = getattr(sys, "last_value", None)
    if error is None or error.__traceback__ is None or sys.flags.interactive or sys.flags.inspect:
        return None
    frame = error.__traceback__.tb_frame
    begins = frame.f_code.co_name in _BEGINNINGS and frame.f_back is None
    return error if begins else None


def noting_failed_threads(previous: Any) -> Any:
    """Of threading.excepthook."""

    def hook(args: Any) -> None:
        global _thread_failure
        if getattr(_thread, "trains", False) and args.exc_type is not SystemExit:
            name = args.thread.name if args.thread is not None else "a thread"
            _thread_failure = f"in {name}, which trains: {reasons.reason(args.exc_value)}"
        previous(args)
        if _thread_failure is not None and _leave is not None:
            _leave(_thread_failure)

    return hook


_leave: Any = None


def when_a_thread_fails(leave: Any) -> None:
    """`leave(why)` is called on a thread that trains, when it ends by an exception."""
    global _leave
    _leave = leave


def thread_failed() -> bool:
    return _thread_failure is not None


class _Code:
    """In the place of SystemExit.code: the same, and notes what the interpreter reads."""

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
    """Of SystemExit.code."""
    return _Code(original)


def leaving_python(_exit: Any) -> Any:
    """sys.exit, which before Python 3.12 makes no SystemExit whose code could be read."""

    def leave_python(status: Any = None, /) -> None:
        raise SystemExit(status)

    return leave_python
