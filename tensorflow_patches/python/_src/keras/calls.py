"""The call of fit, evaluate or predict that a thread is in, and its model.

Code that should run only in such a call (exchanges at its callbacks, a line about how batches are
divided) asks here: a script that drives a CallbackList itself runs its own loop.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from tensorflow.mpi._src.data import failures
from tensorflow.mpi._src.global_batch import plan
from tensorflow.mpi._src.messaging import control_plane
from tensorflow.mpi._src.presence import presence, reasons
from tensorflow.mpi._src.runtime import group


class Call:
    """One call of fit, evaluate or predict on this rank."""

    def __init__(self, kind: str, model: Any) -> None:
        self.kind = kind
        self.model = model
        self.spec: Any = None  # the spec of the batches that it iterates
        self.label = ""  # the name of the exchange at its beginning
        self.unbuilt = False  # whether the model had no variables at its beginning


class _Calls(threading.local):
    def __init__(self) -> None:
        self.stack: list[Call] = []  # the innermost last


_calls = _Calls()
_fits = 0  # calls of fit in progress, on all threads


def in_fit() -> bool:
    """Whether some thread of this process is in fit."""
    return _fits > 0


def innermost() -> Call | None:
    """The call that this thread is in; None in a loop of the script."""
    return _calls.stack[-1] if _calls.stack else None


def note_data(spec: Any) -> None:
    """Records that the innermost call iterates batches of `spec`."""
    call = innermost()
    if call is not None and call.spec is None:
        call.spec = spec


def used_by(call: Call) -> str:
    """The kind of call that will use the batches being made: fit also makes those of its
    validation, after its own."""
    return "evaluate" if call.spec is not None and call.kind == "fit" else call.kind


def wrap(kind: str) -> Callable[[Any], Any]:
    """Wraps Model.fit, evaluate or predict."""

    def make(original: Any) -> Any:
        def inside(self: Any, *args: Any, **kwargs: Any) -> Any:
            global _fits
            call = Call(kind, self)
            _fits += kind == "fit"
            _calls.stack.append(call)
            presence.begin(called(kind, self))
            since = failures.current_time()
            try:
                return original(self, *args, **kwargs)
            except BaseException as error:
                raised, reported = failures.error_to_raise(error, since)
                if not reported and isinstance(error, Exception):
                    _tell(call, error)
                if raised is error:
                    raise
                raise raised from None
            finally:
                presence.end()
                _calls.stack.pop()
                if all(outer.model is not self for outer in _calls.stack):
                    plan.call_ended(self)
                _fits -= kind == "fit"

        return inside

    return make


def _tell(call: Call, error: Exception) -> None:
    """Tells the other ranks of an error that this rank's part of the data has raised.

    If ranks exchange something for each batch, they know already (failures.py). Otherwise they wait
    for this rank's gradients, now or soon. So this rank starts an exchange without them, which is
    detected as a deadlock: their wait ends with a message that names the error. If all ranks have
    the same error, all take part, and the exchange completes.
    """
    if call.spec is None or group.size == 1 or "IteratorGetNext" not in str(error):
        return
    if reasons.another_ranks_failure(error) is None:
        text = f"an error: {called(call.kind, call.model)} has met {reasons.reason(error)}"
        with contextlib.suppress(Exception):  # this rank's own error is the one to raise
            control_plane.headers(text, None)


def called(kind: str, model: Any) -> str:
    """For users: "fit() of model 'm'"."""
    return f"{kind}() of model '{getattr(model, 'name', '')}'"


def noting_epochs(original: Any) -> Any:
    """Wraps CallbackList.on_epoch_begin."""

    def on_epoch_begin(self: Any, epoch: Any, *args: Any, **kwargs: Any) -> Any:
        call = innermost()
        if call is not None:
            presence.rename_activity(f"{called(call.kind, call.model)}, epoch {int(epoch) + 1}")
        return original(self, epoch, *args, **kwargs)

    return on_epoch_begin
