"""Whether all ranks run one program: compared when fit, evaluate or predict begins.

Ranks with different architectures, losses or vocabularies would silently share one set of weights.
The first difference is an error with both ranks' values. Other attributes of a layer or model of
the script's own class may legitimately differ; a line reports them.
"""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Callable
from typing import Any

from tensorflow.mpi._src.data import feeds, own_data
from tensorflow.mpi._src.keras import calls, describe
from tensorflow.mpi._src.messaging import control_plane
from tensorflow.mpi._src.presence import presence
from tensorflow.mpi._src.runtime import log
from tensorflow.mpi._src.variables import initial_broadcast

_numbers = itertools.count(1)
_KEPT = "_tf_mpi_described"
# A variable of Keras 3's optimizers, synchronized with the others.
_RATE = "optimizer learning_rate"


def wrap(kind: str) -> Callable[[Any], Any]:
    """Wraps Model.fit, evaluate or predict: compares before it begins."""

    def make(original: Any) -> Any:
        def compared(self: Any, *args: Any, **kwargs: Any) -> Any:
            if calls.innermost() is None:  # not inside another call, as fit's own evaluation is
                arguments = describe.of_call(kind, original, (self, *args), kwargs)
                presence.begin(calls.called(kind, self))
                try:
                    _compare(kind, self, arguments if feeds.takes_parts() else [])
                finally:
                    presence.end()
            return original(self, *args, **kwargs)

        return compared

    return make


def _compare(kind: str, model: Any, arguments: list[describe.Line]) -> None:
    """Raises ValueError on all ranks if their programs differ (see _tell). Collective."""
    lines = [*arguments, *_architecture(model), *describe.of_names(model)]
    if kind != "predict":
        lines += describe.of_training(model)
    label = f"program {next(_numbers)}: {kind}"
    mine = [_digest(lines), _digest(_without_rate(lines)), bool(initial_broadcast.changed())]
    everyone = control_plane.headers(label, mine)
    # After a restore the rate, too, becomes rank 0's: compare the digests without it, theirs[1].
    restored = any(theirs[2] for theirs in everyone)
    if all(theirs[restored] == everyone[0][restored] for theirs in everyone):
        return
    lines = _without_rate(lines) if restored else lines
    described = control_plane.headers(f"{label}: lines", lines)
    _tell(kind, model, [{key: (called, value) for key, called, value in one} for one in described])


def _digest(lines: list[describe.Line]) -> int:
    return zlib.crc32(json.dumps([[key, value] for key, _, value in lines]).encode())


def _without_rate(lines: list[describe.Line]) -> list[describe.Line]:
    return [line for line in lines if line[0] != _RATE]


def _architecture(model: Any) -> list[describe.Line]:
    """The description of the model, cached while its layers and their state are unchanged."""
    key = [part for layer in model._flatten_layers() for part in describe.identity(layer)]
    kept = vars(model).get(_KEPT)
    if kept is None or kept[0] != key:
        kept = (key, describe.of_model(model))
        vars(model)[_KEPT] = kept
    return list(kept[1])


def _tell(kind: str, model: Any, everyone: list[dict[str, tuple[str, str]]]) -> None:
    """Raises for the first difference from rank 0; prints a line where ranks may differ."""
    first = everyone[0]
    for rank, theirs in enumerate(everyone):
        for key in [*first, *(key for key in theirs if key not in first)]:
            if first.get(key, ("", ""))[1] == theirs.get(key, ("", ""))[1]:
                continue
            difference = _difference(rank, first.get(key), theirs.get(key))
            if describe.is_attribute(key):
                log.once(f"{kind}() of model '{model.name}': {difference}; each rank keeps its own")
                continue
            raise ValueError(
                f"{kind}() of model '{model.name}': {difference}. All ranks must run the same "
                "program. Random draws without a seed are the same on all ranks after `import "
                "tensorflow`; values from a clock, a process id, a rank, an address or os.urandom "
                f"are not. Set a seed, or draw after the import. {_way_out(key)}"
            )


def _way_out(key: str) -> str:
    if key in describe.OF_CALLS["fit"]:
        return own_data.WAY_OUT
    return "To run a different program on each rank, set TF_MPI_ENABLE=0"


def _difference(rank: int, first: tuple[str, str] | None, theirs: tuple[str, str] | None) -> str:
    called = (first or theirs or ("", ""))[0]
    values = [describe.shown(one[1]) if one else "none" for one in (first, theirs)]
    return f"{called} is {values[0]} on rank 0 and {values[1]} on rank {rank}"
