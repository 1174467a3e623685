"""Gathers the whole result of `predict`, in order, on every rank, from the ranks' parts.

The ranks' outputs for a batch are concatenated. Outputs that cannot be gathered this way (ragged
outputs, strings, outputs that are not one per sample) are predicted again, whole, by every rank.

Predictions belong to the rows that the script passed: if the ranks' rows differ, each rank predicts
all of its own. Each rank also predicts all that a generator yields, because the script may later
read what the generator has recorded.
"""

from __future__ import annotations

import inspect
import itertools
import threading
import weakref
import zlib
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.mpi._src.data import batch_shard, contents
from tensorflow.mpi._src.messaging import collectives, control_plane
from tensorflow.mpi._src.runtime import group, log

_numbers = itertools.count(1)  # of calls of predict, in program order


class Prediction:
    """One call of predict on this rank."""

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.expects_data = True  # its dataset does not exist yet
        # The number of samples of each batch, on all ranks; None: this rank predicts all samples.
        self.sizes: list[int] | None = None
        # Digests of the first n elements, by n, if these could not be compared in advance.
        self.elements = [0]
        self.callback_reads_batches = False  # a callback on this rank may read a batch's outputs

    def any_callback_reads_batches(self, label: str) -> bool:
        """Whether a callback on any rank may read the outputs of single batches. Collective.

        If so, every rank predicts whole batches: the ranks' outputs are gathered only at the end.
        """
        read = control_plane.any_rank(f"{label}: read by a callback?", self.callback_reads_batches)
        if read:
            log.once(
                "predict: a callback has on_predict_batch_end, which receives the outputs of a "
                "batch, so every rank predicts all samples, at one process's speed. To share the "
                "work, use the outputs that predict() returns, which are the same, and no such "
                "callback",
                key="predict shows batches",
            )
        return read

    def note_elements(self, dataset: Any) -> Any:
        """`dataset`, whose elements are added to the digest as they are produced."""

        def note(*parts: Any) -> bool:
            digest = self.elements[-1]
            for part in parts:
                digest = zlib.crc32(repr(contents.of_array(part)).encode(), digest)
            self.elements.append(digest)
            return True

        def noted(element: Any) -> Any:
            parts = tf.nest.flatten(element, expand_composites=True)
            present = [part for part in parts if tf.is_tensor(part) and part.dtype != tf.variant]
            with tf.control_dependencies([tf.numpy_function(note, present, tf.bool)]):
                return tf.nest.map_structure(
                    lambda part: tf.identity(part) if tf.is_tensor(part) else part, element
                )

        # One after another: the digest depends on the order of the elements.
        return batch_shard.map_on_request(dataset, noted)

    def digest_of_used(self) -> int:
        """The digest without elements that were read ahead, but that predict has not used."""
        return self.elements[min(len(self.sizes or ()), len(self.elements) - 1)]

    def record(self, dataset: Any, as_shards: bool) -> Any:
        """The samples of a dataset of shards; records the number of samples of each batch used.

        Args:
          as_shards: elements stay shards, for a step that needs its place in the batch.
        """
        self.sizes = []
        _under_way[self.number] = self

        def plain(numbered: Any) -> Any:
            number, element = numbered
            rows = tf.shape(element.whole)[0]
            noted = tf.numpy_function(_note_rows, [number, rows], [])
            with tf.control_dependencies([noted] if noted is not None else []):
                return tf.nest.map_structure(
                    lambda part: tf.identity(part) if tf.is_tensor(part) else part,
                    element if as_shards else element.data,
                )

        numbers = tf.data.Dataset.from_tensors(self.number).repeat()
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False  # predict may not use all batches
        numbered = tf.data.Dataset.zip((numbers, dataset)).with_options(options)
        return batch_shard.map_on_request(numbered, plain, ("predict", as_shards))


# The divided calls of predict, by number. Until the process exits, TensorFlow keeps every Python
# function that a graph calls, so one function serves all calls and refers to none of them.
_under_way: weakref.WeakValueDictionary[int, Prediction] = weakref.WeakValueDictionary()


def _note_rows(number: Any, rows: Any) -> None:
    call = _under_way.get(int(number))
    if call is not None and call.sizes is not None:
        call.sizes.append(int(rows))


class _Calls(threading.local):
    """The calls of predict that run on this thread, the innermost last; None: an undivided one."""

    def __init__(self) -> None:
        self.stack: list[Prediction | None] = []


_calls = _Calls()


def take_expected() -> tuple[bool, Prediction | None]:
    """For a dataset that is being made: (whether it is for predict, the call that divides it).

    The call's next datasets are not for predict.
    """
    if not _calls.stack:
        return False, None
    call = _calls.stack[-1]
    if call is None:
        return True, None
    if not call.expects_data:
        return False, None  # a callback of predict calls evaluate
    call.expects_data = False
    return True, call


def wrap(predict: Any) -> Any:
    """Wraps predict(model, ...): predicts this rank's part and returns the whole."""
    signature = inspect.signature(predict)

    def whole(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = Prediction()
        call.callback_reads_batches = _reads_batches(signature.bind_partial(self, *args, **kwargs))
        outputs = _run(predict, call, self, *args, **kwargs)
        if call.sizes is None:
            return outputs  # every rank has predicted everything
        gathered = _gather(call, outputs)
        return _run(predict, None, self, *args, **kwargs) if gathered is None else gathered

    return whole


def _reads_batches(call: inspect.BoundArguments) -> bool:
    """Whether a callback that the script passes to predict defines on_predict_batch_end."""
    given = call.arguments.get("callbacks") or ()
    callbacks = getattr(given, "callbacks", given)  # of a CallbackList
    callbacks = callbacks if isinstance(callbacks, (list, tuple)) else (callbacks,)
    hooks = [getattr(one, "on_predict_batch_end", None) for one in callbacks]
    return any(hook and not getattr(hook, "_is_default", False) for hook in hooks)


def note_own_data(what: str = "") -> None:
    """Rank 0 says once that the ranks' data differ."""
    log.once(
        f"predict{', ' if what else ''}{what}: the ranks have different data, so each rank "
        "predicts all of its own. To share the work, give all ranks the same data",
        key="predict own data",
    )


def _run(predict: Any, call: Prediction | None, *args: Any, **kwargs: Any) -> Any:
    _calls.stack.append(call)
    try:
        return predict(*args, **kwargs)
    finally:
        _calls.stack.pop()


def _gather(call: Prediction, outputs: Any) -> Any:
    """The whole result, in order; None if it cannot be made from the ranks' parts."""
    sizes = np.array(call.sizes, np.int64)
    firsts = [batch_shard.first_row(sizes, rank) for rank in range(group.size + 1)]
    rows = np.diff(firsts, axis=0)  # by rank and batch
    mine = rows[group.rank]
    given = np.maximum(mine, np.minimum(sizes, 1))  # with stand-ins
    leaves = tf.nest.flatten(outputs)
    forms = [_row_form(leaf, given.sum()) for leaf in leaves]
    label = f"predict {call.number}"
    everyone = control_plane.headers(label, [int(sizes.sum()), forms, call.digest_of_used()])
    if any(theirs[2] != everyone[0][2] for theirs in everyone):
        note_own_data()
        return None
    if any(theirs[:2] != everyone[0][:2] for theirs in everyone) or None in forms:
        log.once(
            "predict: outputs that are strings, or without a row for each sample, cannot be "
            "gathered from the ranks, so each rank predicts once more, now all of the data. That "
            "is more work than in one process, and random generators advance twice. To avoid it, "
            "return numbers, one row per sample",
            key="predict once more",
        )
        return None
    is_own = np.repeat(mine > 0, given)  # false for stand-ins
    batches = np.concatenate([np.repeat(np.arange(len(sizes)), theirs) for theirs in rows])
    order = np.argsort(batches, kind="stable")  # from the ranks' order to that of the batches
    whole = []
    for number, leaf in enumerate(leaves):
        parts = collectives.run("allgather", leaf[is_own], f"{label} output {number}")
        whole.append(parts[order])
    return tf.nest.pack_sequence_as(outputs, whole)


def _row_form(leaf: Any, rows: int) -> list[Any] | None:
    """Dtype and shape of one sample's output; None if it cannot be gathered."""
    if not isinstance(leaf, np.ndarray) or leaf.dtype.name not in collectives.DTYPES:
        return None
    if leaf.ndim == 0 or leaf.shape[0] != rows:
        return None
    return [leaf.dtype.name, list(leaf.shape[1:])]
