"""The whole result of `predict`, in order, on every rank, of what each rank predicts of its part.

Sample i of the data is rank i % size's, so the ranks' outputs go back by turns. What
cannot be gathered so (ragged outputs, outputs that have no sample per input) is predicted anew,
whole, by every rank.

Predictions belong to the rows that a script has given: where the ranks' rows differ, each rank
predicts its own, whole. A generator is each rank's own, too: what it notes while it yields goes
with what it has yielded.
"""

from __future__ import annotations

import itertools
import threading
import zlib
from typing import Any

from tensorflow.mpi._src.data import batch_shard, contents
from tensorflow.mpi._src.messaging import collectives, control_plane
from tensorflow.mpi._src.runtime import group, log

_numbers = itertools.count(1)  # of predict calls, in program order


class Prediction:
    """One call of predict on this rank."""

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.expects_data = True  # its dataset has not been made yet
        self.rows: list[tuple[int, int]] | None = None  # by batch: of its outputs; those that count
        self.elements = 0  # a digest of the elements of data that could not be compared ahead

    def note_elements(self, dataset: Any) -> Any:
        """`dataset`, whose elements are looked at as they come."""
        import tensorflow as tf

        self.elements = 0

        def note(*parts: Any) -> bool:
            for part in parts:
                self.elements = zlib.crc32(repr(contents.of_array(part)).encode(), self.elements)
            return True

        def noted(element: Any) -> Any:
            parts = tf.nest.flatten(element, expand_composites=True)
            present = [part for part in parts if tf.is_tensor(part) and part.dtype != tf.variant]
            with tf.control_dependencies([tf.numpy_function(note, present, tf.bool)]):
                return tf.nest.map_structure(
                    lambda part: tf.identity(part) if tf.is_tensor(part) else part, element
                )

        # In their order, and all of them: scan() is not made parallel.
        return batch_shard.scan(
            dataset, tf.constant(0), lambda state, element: (state, noted(element))
        )

    def record(self, dataset: Any) -> Any:
        """The samples of a dataset of batch_shard.Counted elements; notes how many count."""
        import tensorflow as tf

        rows: list[tuple[int, int]] = []
        self.rows = rows
        spec = dataset.element_spec.data

        def note(outputs: Any, counting: Any) -> None:
            rows.append((int(outputs), int(counting)))

        def plain(element: Any) -> Any:
            noted = tf.numpy_function(
                note, [batch_shard.num_rows(spec, element.data), element.rows], [], stateful=True
            )
            with tf.control_dependencies([noted] if noted is not None else []):
                return tf.nest.map_structure(
                    lambda part: tf.identity(part) if tf.is_tensor(part) else part, element.data
                )

        return dataset.map(plain)


class _Calls(threading.local):
    """The predict calls under way on this thread, the innermost last."""

    def __init__(self) -> None:
        self.stack: list[Prediction | None] = []


_calls = _Calls()


def expected() -> tuple[bool, Prediction | None]:
    """Of a dataset that is being made: (is it for predict?, the call that splits it if any)."""
    if not _calls.stack:
        return False, None
    call = _calls.stack[-1]
    if call is None:
        return True, None
    if not call.expects_data:
        return False, None  # a callback of predict evaluates
    call.expects_data = False
    return True, call


def wrap(predict: Any) -> Any:
    """Makes predict(model, ...) predict this rank's part and return the whole."""

    def whole(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = Prediction()
        outputs = _run(predict, call, self, *args, **kwargs)
        if call.rows is None:
            return outputs  # every rank has predicted everything
        gathered = _gather(call, outputs)
        return _run(predict, None, self, *args, **kwargs) if gathered is None else gathered

    return whole


def say_own(what: str) -> None:
    """Once, on rank 0; all ranks see at the same time that their data differ."""
    log.once(
        f"predict, {what}: the ranks were given different data, so each rank predicts its own, "
        "whole, as it would alone",
        key="predict own data",
    )


def _run(predict: Any, call: Prediction | None, *args: Any, **kwargs: Any) -> Any:
    _calls.stack.append(call)
    try:
        return predict(*args, **kwargs)
    finally:
        _calls.stack.pop()


def _gather(call: Prediction, outputs: Any) -> Any:
    """The whole result, in order; None if it cannot be told from the ranks' parts."""
    import numpy as np
    import tensorflow as tf

    assert call.rows is not None
    leaves = tf.nest.flatten(outputs)
    num_outputs = sum(outputs for outputs, _ in call.rows)
    counting = np.repeat([count > 0 for _, count in call.rows], [n for n, _ in call.rows])
    mine = sum(count for _, count in call.rows)
    kinds = [_kind(leaf, num_outputs) for leaf in leaves]
    label = f"predict {call.number}"
    told = control_plane.headers(label, [mine, kinds, call.elements])
    if any(theirs[2] != told[0][2] for theirs in told):
        say_own("the data")
        return None
    everyone = [theirs[:2] for theirs in told]
    total = sum(theirs for theirs, _ in everyone)
    for rank, (theirs, their_kinds) in enumerate(everyone):
        by_turns = len(range(rank, total, group.size))
        if theirs != by_turns or their_kinds != everyone[0][1] or None in their_kinds:
            return None
    whole = []
    for number, leaf in enumerate(leaves):
        name = f"{label} output {number}"
        parts = collectives.run("allgather", leaf[counting], name)
        in_order = np.empty_like(parts)
        first = 0
        for rank, (theirs, _) in enumerate(everyone):
            in_order[rank :: group.size] = parts[first : first + theirs]
            first += theirs
        whole.append(in_order)
    return tf.nest.pack_sequence_as(outputs, whole)


def _kind(leaf: Any, rows: int) -> list[Any] | None:
    """Dtype and shape of one sample's output; None for what cannot be gathered."""
    import numpy as np

    if not isinstance(leaf, np.ndarray) or leaf.dtype.name not in collectives.DTYPES:
        return None
    if leaf.ndim == 0 or leaf.shape[0] != rows:
        return None
    return [leaf.dtype.name, list(leaf.shape[1:])]
