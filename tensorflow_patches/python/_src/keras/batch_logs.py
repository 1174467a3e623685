"""Logs of a batch for callbacks: all ranks' where a callback looks at them, else never exchanged.

Most functions that Keras calls after each batch only count or take the time. Whether one reads its
logs cannot be told before, so it is given a dict that finds out: at the first look at a value the
ranks exchange theirs. A look may come on one rank only, or in one batch of a hundred. So where any
callback may look, ranks meet at the end of each batch; a look is such a meeting, too, only earlier,
and one that says so: then all exchange, and go on to the next meeting. The batch has ended once
nobody asks. After a batch that somebody has looked at, the next one's logs are exchanged at once.

Everything here runs on the thread that calls fit or evaluate, between two batches.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from tensorflow.mpi._src.keras import logs as logs_of_ranks
from tensorflow.mpi._src.messaging import collectives


class WholeLogs(dict[str, Any]):
    """Has this rank's values until a value is looked at, then all ranks'. The keys are the same.

    Args:
      values: to begin with.
      ask: called at the first look; returns all ranks' values.
    """

    def __init__(self, values: dict[str, Any], ask: Callable[[], dict[str, Any]]) -> None:
        super().__init__(values)
        self._ask: Callable[[], dict[str, Any]] | None = ask
        self._convert: Callable[[Any], dict[str, Any]] | None = None

    @property
    def is_unseen(self) -> bool:
        return self._ask is not None

    def own(self) -> dict[str, Any]:
        """What is known by now, without a look."""
        return {key: dict.__getitem__(self, key) for key in dict.keys(self)}

    def converted(self, convert: Callable[[Any], dict[str, Any]]) -> WholeLogs:
        """Values as Keras gives them to callbacks, those to come, too."""
        self._convert = convert
        self._fill(self.own())
        return self

    def set_whole(self, whole: dict[str, Any]) -> None:
        """These are all ranks' values; from here it is a dict like any."""
        self._ask = None
        self._fill(whole)

    def _fill(self, values: dict[str, Any]) -> None:
        values = values if self._convert is None else self._convert(values)
        dict.clear(self)
        dict.update(self, values)

    def _look(self) -> None:
        if self._ask is not None:
            self.set_whole(self._ask())

    def __iter__(self) -> Any:  # without it dict(logs) and f(**logs) do not ask for items
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
    """Those of one fit or evaluation, whose logs a callback of some rank may look at.

    Args:
      model: which is trained or evaluated.
      kind: "train_step" or "test_step".
      label: the name under which the ranks meet.
    """

    def __init__(self, model: Any, kind: str, label: str) -> None:
        self._model, self._kind, self._label = model, kind, label
        self._states: logs_of_ranks.States | None = None
        self._whole: dict[str, Any] | None = None
        self._looked = False  # here, in this batch
        self._at_once = False  # on some rank, in the batch before

    def begin(self, logs: dict[str, Any], at_once: bool) -> WholeLogs:
        """Before a batch's callbacks: what they are given for `logs`, which are this rank's.

        at_once: they run on another thread, from which ranks do not meet.
        """
        if self._states is None:  # the first step has made them
            self._states = logs_of_ranks.states_of(self._model, self._kind)
        # A callback may evaluate, and look then.
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
        self._whole = logs_of_ranks.of_batch(
            self._model, self._kind, self._own, self._states, self._values, self._label
        )

    def _ask(self) -> dict[str, Any]:
        self._looked = True
        if self._whole is None:
            self._meet(asks=True)
        assert self._whole is not None
        return self._whole

    def _meet(self, *, asks: bool, stops: bool = False) -> tuple[bool, bool]:
        """Whether some rank stops the training, and whether one asks; if so, all exchange."""
        flags = np.array([stops, asks, self._looked], np.int32)
        met = collectives.run("allreduce", flags, f"{self._label}: stop?", op="max")
        any_stops, any_asks, self._at_once = map(bool, met)
        if any_asks:
            self._exchange()
        return any_stops, any_asks

    def settle(self) -> bool:
        """Until no rank asks: whether the training stops on some rank."""
        while True:
            kept = self._given()
            waits = kept is not None and kept.is_unseen  # a callback has kept it, to look later
            self._looked |= waits
            stops, asked = self._meet(
                asks=waits and self._whole is None,
                stops=bool(getattr(self._model, "stop_training", False)),
            )
            if kept is not None and waits and self._whole is not None:
                kept.set_whole(self._whole)
            if not asked:
                return stops

    def end(self) -> bool:
        """After a batch's callbacks: whether the training stops, alike on all ranks."""
        self.leave()
        return self.settle()

    def leave(self) -> None:
        """Its callbacks run no more; one of them has raised, if `end` is not called."""
        if self in _open:  # not if the ranks could not meet before them
            _open.remove(self)


_open: list[Batches] = []  # whose callbacks run; a callback may train or evaluate, too


def before_call() -> None:
    """All ranks begin another call in a callback: one of them may look at its logs before."""
    if _open:
        _open[-1].settle()


def passing_on(original: Any) -> Any:
    """Wraps the function that makes callbacks' logs of a step's."""

    def convert(logs: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(logs, WholeLogs):
            return logs.converted(lambda values: original(values, *args, **kwargs))
        return original(logs, *args, **kwargs)

    return convert


def showing_own(original: Any) -> Any:
    """Wraps what a progress bar does after a batch: it shows rank 0's, or what others asked for."""

    def update(self: Any, batch: Any, logs: Any = None) -> Any:
        return original(self, batch, logs.own() if isinstance(logs, WholeLogs) else logs)

    return update
