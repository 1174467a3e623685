"""Logs of a batch for callbacks: exchanged between ranks only if a callback reads them.

Most methods that Keras calls after each batch only count or take the time. Whether one reads its
logs is unknown in advance, so it gets a dict that exchanges the ranks' values at the first read of
a value. A read may happen on one rank only, or in one batch of a hundred. So, if any callback may
read logs, the ranks meet at the end of each batch. A rank that reads meets the others early, and
requests the exchange; then all ranks exchange, and meet again. The batch ends when no rank requests
an exchange. After a batch whose logs were read, the next batch's logs are exchanged at once.

Everything here runs on the thread that calls fit or evaluate, between two batches.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from tensorflow.mpi._src.keras import logs as logs_of_ranks
from tensorflow.mpi._src.messaging import collectives

_LATE = "_tf_mpi_stops"  # attribute of a model; see stop_together


class WholeLogs(dict[str, Any]):
    """A dict with this rank's values until one is read, then with those of all ranks.

    Args:
      ask: called at the first read; returns the values of all ranks, with the same keys.
    """

    def __init__(self, values: dict[str, Any], ask: Callable[[], dict[str, Any]]) -> None:
        super().__init__(values)
        self._ask: Callable[[], dict[str, Any]] | None = ask
        self._convert: Callable[[Any], dict[str, Any]] | None = None

    @property
    def is_unseen(self) -> bool:
        return self._ask is not None

    def own(self) -> dict[str, Any]:
        """The current values, without an exchange."""
        return {key: dict.__getitem__(self, key) for key in dict.keys(self)}

    def converted(self, convert: Callable[[Any], dict[str, Any]]) -> WholeLogs:
        """Converts values, present and future, as Keras does for callbacks."""
        self._convert = convert
        self._fill(self.own())
        return self

    def set_whole(self, whole: dict[str, Any]) -> None:
        """Sets the values of all ranks; from here it is an ordinary dict."""
        self._ask = None
        self._fill(whole)

    def _fill(self, values: dict[str, Any]) -> None:
        values = values if self._convert is None else self._convert(values)
        dict.clear(self)
        dict.update(self, values)

    def _look(self) -> None:
        if self._ask is not None:
            self.set_whole(self._ask())

    def __iter__(self) -> Any:  # otherwise dict(logs) and f(**logs) do not call __getitem__
        return super().__iter__()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (dict(self),)


def _looking(name: str) -> Any:
    original = getattr(dict, name)

    def looks(self: WholeLogs, *args: Any) -> Any:
        self._look()
        return original(self, *args)

    return looks


for _name in (
    "__getitem__ get items values copy pop popitem setdefault update clear "
    "__setitem__ __delitem__ __eq__ __ne__ __or__ __ror__ __ior__ __repr__"
).split():
    setattr(WholeLogs, _name, _looking(_name))


class Batches:
    """The batches of one fit or evaluation whose logs a callback of some rank may read.

    Args:
      kind: "train_step" or "test_step".
      label: the name of the exchanges.
    """

    def __init__(self, model: Any, kind: str, label: str) -> None:
        self._model, self._kind, self._label = model, kind, label
        self._states: logs_of_ranks.States | None = None
        self._whole: dict[str, Any] | None = None
        self._looked = False  # whether this rank has read this batch's logs
        self._at_once = False  # whether a rank has read those of the batch before

    def begin(self, logs: dict[str, Any], at_once: bool) -> WholeLogs:
        """Called before a batch's callbacks; returns what they get for this rank's `logs`.

        Args:
          at_once: the callbacks run on another thread, which cannot exchange anything.
        """
        if self._states is None:  # the first step has created them
            self._states = logs_of_ranks.states_of(self._model, self._kind)
        # A callback may call evaluate, and read the logs afterwards.
        self._values = logs_of_ranks.values_of(self._states)
        self._own, self._whole, self._looked = dict(logs), None, False
        if self._at_once or at_once:
            self._exchange()
        given = WholeLogs(self._whole or self._own, self._ask)
        if at_once:
            given.set_whole(self._whole or {})
        self._given = weakref.ref(given)
        _open.append(self)
        return given

    def _exchange(self) -> None:
        assert self._states is not None
        self._whole = logs_of_ranks.exchange_batch_logs(
            self._model, self._kind, self._own, self._states, self._values, self._label
        )

    def _ask(self) -> dict[str, Any]:
        self._looked = True
        if self._whole is None:
            self._meet(asks=True)
        assert self._whole is not None
        return self._whole

    def _meet(self, *, asks: bool, stops: bool = False) -> tuple[bool, bool]:
        """Returns whether a rank stops training, and whether one requests the logs. If one does,
        exchanges them."""
        flags = np.array([stops, asks, self._looked], np.int32)
        met = collectives.run("allreduce", flags, f"{self._label}: stop?", op="max")
        any_stops, any_asks, self._at_once = map(bool, met)
        if any_asks:
            self._exchange()
        return any_stops, any_asks

    def settle(self) -> bool:
        """Meets until no rank requests the logs; returns whether training stops on some rank."""
        while True:
            kept = self._given()
            waits = kept is not None and kept.is_unseen  # a callback has kept it, to read it later
            self._looked |= waits
            stops, asked = self._meet(
                asks=waits and self._whole is None,
                stops=is_stopping(self._model),
            )
            if kept is not None and waits and self._whole is not None:
                kept.set_whole(self._whole)
            if not asked:
                return stops

    def end(self) -> bool:
        """Called after a batch's callbacks; whether training stops, the same on all ranks."""
        self.leave()
        return self.settle()

    def leave(self) -> None:
        """Called when the batch's callbacks have returned, or one has raised."""
        if self in _open:  # not if the exchange before them failed
            _open.remove(self)


_open: list[Batches] = []  # batches whose callbacks run; a callback may train or evaluate, too


def is_stopping(model: Any) -> bool:
    """Whether this rank stops training."""
    return bool(getattr(model, "stop_training", False)) or _LATE in vars(model)


def stop_together(model: Any, stops: bool) -> None:
    """Called when the ranks have agreed whether training stops. If this rank's stop_training was
    set meanwhile, as by the handler of a signal, all ranks stop when they agree again."""
    if stops:
        model.stop_training = True
        forget_stop(model)
    elif getattr(model, "stop_training", False):
        vars(model)[_LATE] = True
        model.stop_training = False


def forget_stop(model: Any) -> None:
    """Called when fit begins."""
    vars(model).pop(_LATE, None)


def before_call() -> None:
    """Called at the start of fit, evaluate and predict on all ranks. If a callback made that call,
    settles the enclosing batch, whose logs another rank may be reading."""
    if _open:
        _open[-1].settle()


def passing_on(original: Any) -> Any:
    """Wraps the function that converts a step's logs for callbacks."""

    def convert(logs: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(logs, WholeLogs):
            return logs.converted(lambda values: original(values, *args, **kwargs))
        return original(logs, *args, **kwargs)

    return convert


def showing_own(original: Any) -> Any:
    """Wraps a progress bar's method: it shows rank 0's values, or those already exchanged."""

    def update(self: Any, batch: Any, logs: Any = None) -> Any:
        return original(self, batch, logs.own() if isinstance(logs, WholeLogs) else logs)

    return update
