"""Which of fit, evaluate and predict a thread is in, and of which model.

What only such a call should do (meetings at its callbacks, a word on how its batches were split)
asks here: a script that drives a CallbackList itself runs a loop of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from tensorflow.mpi._src.presence import presence
from tensorflow.mpi._src.runtime import group

# What a model raises that was given fewer rows than it counts on.
_OF_SHAPES = (ValueError, TypeError, IndexError)


class Call:
    """One call of fit, evaluate or predict on this rank."""

    def __init__(self, kind: str, model: Any) -> None:
        self.kind = kind
        self.model = model
        self.split = False  # its batches are split among the ranks
        self.spec: Any = None  # of the batches that it iterates
        self.batches = 0  # that have ended
        self.label = ""  # under which the ranks have met at its beginning
        self.unbuilt = False  # the model had no variables then


class _Calls(threading.local):
    def __init__(self) -> None:
        self.stack: list[Call] = []  # the innermost last


_calls = _Calls()
_fits = 0  # on all threads of this process


def in_fit() -> bool:
    """Whether some thread of this process is in fit."""
    return _fits > 0


def innermost() -> Call | None:
    """The call that this thread is in; None in a loop of the script's own."""
    return _calls.stack[-1] if _calls.stack else None


def note_data(spec: Any, split: bool) -> None:
    """The innermost call iterates batches of `spec`; `split`: this rank's part of each."""
    call = innermost()
    if call is not None and call.spec is None:
        call.spec, call.split = spec, split


def used_by(call: Call) -> str:
    """By which kind of call the batches will be used that are being made: fit makes its
    validation's, too, once it has its own."""
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
            try:
                return original(self, *args, **kwargs)
            except Exception as error:
                if call.split and call.batches == 0 and _is_of_shapes(error):
                    _note(error, _split(call))
                raise
            finally:
                presence.end()
                _calls.stack.pop()
                _fits -= kind == "fit"

        return inside

    return make


def called(kind: str, model: Any) -> str:
    """For people: "fit() of model 'm'"."""
    return f"{kind}() of model '{getattr(model, 'name', '')}'"


def noting_epochs(original: Any) -> Any:
    """Wraps CallbackList.on_epoch_begin."""

    def on_epoch_begin(self: Any, epoch: Any, *args: Any, **kwargs: Any) -> Any:
        call = innermost()
        if call is not None:
            presence.goes_on(f"{called(call.kind, call.model)}, epoch {int(epoch) + 1}")
        return original(self, epoch, *args, **kwargs)

    return on_epoch_begin


def _is_of_shapes(error: Exception) -> bool:
    import tensorflow as tf

    kinds = (*_OF_SHAPES, tf.errors.InvalidArgumentError)
    return isinstance(error, kinds) and any(_in_step(one) for one in _chain(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _in_step(error: BaseException) -> bool:
    """Whether it was raised while a step was traced or run: feeds.py notes so."""
    return hasattr(error, "_tf_mpi_in_step") or "Graph execution error" in str(error)


def _split(call: Call) -> str:
    return (
        f"tensorflow.mpi: {call.kind}() of model '{call.model.name}' gives each of {group.size} "
        "ranks a part of the first dimension of every batch. If that dimension is not one of "
        "samples (a graph, pairs of anchors and positives), set TF_MPI_SHARD=off: each rank then "
        "has the whole batch"
    )


def _note(error: Exception, text: str) -> None:
    """Below the error's own message, in its traceback and in what the other ranks hear."""
    if hasattr(error, "add_note"):
        error.add_note(text)
    elif error.args and isinstance(error.args[0], str):  # Python 3.10
        error.args = (f"{error.args[0]}\n{text}", *error.args[1:])
