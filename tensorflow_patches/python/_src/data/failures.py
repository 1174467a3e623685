"""An error on one rank's way to its next batch, told to those that meet it at each.

Where a batch is a meeting of all ranks (streams.py), the others would wait in it for as long as the
failed rank lives. It takes part once more, when the error has left its iterator or its call of fit,
with a message in place of data: nobody waits for that one to arrive. The others raise the same kind
of error, which says whose it is; the traceback is shown where it happened.
"""

from __future__ import annotations

import atexit
import itertools
import json
import sys
import weakref
from typing import Any

import numpy as np
from tensorflow.mpi._src.data import batch_shard
from tensorflow.mpi._src.messaging import collectives
from tensorflow.mpi._src.presence import reasons
from tensorflow.mpi._src.runtime import group

_WORD = 8  # bytes
_MAGIC = np.frombuffer(b"\xfftfmpi\n\xfe", np.int64)[0]  # the last word of a message
_REPORTED = "_tf_mpi_told"  # of an error that has left its iterator

_numbers = itertools.count(1)
_living: weakref.WeakSet[Meetings] = weakref.WeakSet()
_sent: list[Any] = []  # messages that perhaps nobody asks for; their memory is the library's
_heard: dict[str, str] = {}  # by what this rank's error says, the class of the other's


class Meetings:
    """Of the iterators of a dataset, one after another: each has a name of its own, on all ranks
    the same.

    An iterator that ends early may leave a request behind, which none of the next may answer.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._iterators = itertools.count()
        self._name = ""  # of the last one; "" also when that is over
        self._dtype: Any = None
        self.began = self._got = 0
        _living.add(self)

    def name(self, dataset: Any, dtype: Any, once: bool = False) -> Any:
        """(name of the iterator, element) for each of `dataset`, whose ranks gather `dtype`s.

        The name comes first: others hear of an error before the first element, too.

        once: nothing comes behind an error, though a thread that reads ahead asks for it; `got` is
        called for each element.
        """
        import tensorflow as tf

        self._dtype = dtype

        def draw(number: Any) -> Any:
            return tf.ensure_shape(tf.numpy_function(self._name_for, [number], tf.string), [])

        if once:
            names = batch_shard.one_by_one(tf.data.Dataset.range(sys.maxsize), draw)
        else:
            names = tf.data.Dataset.range(1).map(draw)
            names = names.flat_map(lambda name: tf.data.Dataset.from_tensors(name).repeat())
        options = tf.data.Options()
        # A thread that reads ahead would ask for more behind an error.
        options.experimental_optimization.inject_prefetch = False
        named = tf.data.Dataset.zip((names, dataset)).with_options(options)
        named._tf_mpi_meetings = self
        return named

    def _name_for(self, number: int) -> bytes:
        """Of the iterator, for its element of this number."""
        if number == 0:
            self.began, self._got = next(_numbers), 0
            self._name = f"allgather {self._label}, iterator {next(self._iterators)}"
        if self._got != number and number:
            raise RuntimeError("nothing comes behind an error")
        return self._name.encode()

    def got(self) -> None:
        """An element, and what the ranks have gathered for it."""
        self._got += 1

    def is_under_way(self) -> bool:
        return bool(self._name)

    def over(self, error: BaseException | None) -> None:
        """This rank asks for no more; others hear of `error`, if it is its own."""
        if error is not None:
            message = collectives.Gathering(_message(error).view(self._dtype), self._name)
            _sent.append(message)
        self._name = ""


def now() -> int:
    """A time: of meetings, for `left`."""
    return next(_numbers)


@atexit.register
def _withdraw() -> None:
    """Before this rank waits for the others' ends: what nobody has asked for is not waited for."""
    while _sent:
        _sent.pop().withdraw()


def left(error: BaseException, since: int) -> tuple[BaseException, bool]:
    """What is to be raised for `error`, which ends a call that has iterated `since` then; and
    whether all ranks have heard of it."""
    return _ended(error, [one for one in _living if one.began > since])


def iterating(get_next: Any) -> Any:
    """Wraps OwnedIterator._next_internal."""

    def next_element(self: Any) -> Any:
        try:
            return get_next(self)
        except Exception as error:
            raised, _ = _ended(error, _of(self._dataset))
            if raised is error:
                raise
            raise raised from None

    return next_element


def _of(dataset: Any) -> list[Meetings]:
    own = [dataset._tf_mpi_meetings] if hasattr(dataset, "_tf_mpi_meetings") else []
    return own + [one for source in dataset._inputs() for one in _of(source)]


def _ended(error: BaseException, those: list[Meetings]) -> tuple[BaseException, bool]:
    from tensorflow.python.framework import errors

    if isinstance(error, (StopIteration, errors.OutOfRangeError)):
        return error, False
    heard = next((text for text in _heard if text in str(error)), None)
    under_way = [one for one in those if one.is_under_way()]
    for one in under_way:
        one.over(error if heard is None else None)
    if heard is None:
        if under_way:
            setattr(error, _REPORTED, True)
        return error, hasattr(error, _REPORTED)
    raised: BaseException = getattr(errors, _heard[heard], errors.UnknownError)(None, None, heard)
    return raised, True


def _message(error: BaseException) -> Any:
    text = json.dumps([group.rank, type(error).__name__, reasons.reason(error)]).encode()
    text += b" " * (-len(text) % _WORD)
    return np.concatenate([np.frombuffer(text, np.int64), [len(text), _MAGIC]]).view(np.uint8)


def raise_if_failed(gathered: Any) -> Any:
    """`gathered`, int64 or bytes of one rank; raises if a rank has told an error in it.

    Bytes are looked at where they end: of many, one after another, a message may be in the midst.
    """
    import tensorflow as tf

    if gathered.dtype == tf.int64:
        return passed_or_raise(tf.reduce_any(gathered == _MAGIC), gathered)
    end = np.array([_MAGIC]).view(np.uint8)
    last = gathered[-_WORD:]
    told = tf.cond(tf.size(last) == _WORD, lambda: tf.reduce_all(last == end), lambda: False)
    return passed_or_raise(told, gathered)


def passed_or_raise(told: Any, gathered: Any, start: Any = 0) -> Any:
    """`gathered`, unless it is `told` an error at `start`, which is raised."""
    import tensorflow as tf

    def raised() -> Any:
        text = tf.numpy_function(_decode_failure, [gathered[start:]], tf.string)
        with tf.control_dependencies([tf.debugging.Assert(False, [text])]):
            return tf.identity(gathered)

    checked = tf.cond(told, raised, lambda: gathered)
    checked.set_shape(gathered.shape)
    return checked


def _decode_failure(gathered: Any) -> bytes:
    words = gathered.view(np.int64)
    end = int(np.argmax(words == _MAGIC))
    text = words[: end - 1].tobytes()[-words[end - 1] :]
    rank, kind, reason = json.loads(text)
    heard = f"rank {rank}/{group.size} has stopped: {reason}"
    _heard[heard] = kind
    return heard.encode()
