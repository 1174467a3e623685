"""Reports an error in one rank's input pipeline to the ranks that share its batches.

If all ranks exchange something for each batch (streams.py), the others would wait for the failed
rank as long as its process lives. When the error has left its iterator or its call of fit, the rank
takes part in one more exchange, with a message in place of data, and does not wait for it to be
received. The others raise an error of the same type that names the rank; the rank itself prints the
traceback.
"""

from __future__ import annotations

import atexit
import itertools
import json
import sys
import weakref
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.mpi._src.data import batch_shard
from tensorflow.mpi._src.messaging import collectives
from tensorflow.mpi._src.presence import reasons
from tensorflow.mpi._src.runtime import group

_WORD = 8  # bytes
_MAGIC = np.frombuffer(b"\xfftfmpi\n\xfe", np.int64)[0]  # marks a message
_REPORTED = "_tf_mpi_reported"  # set on an error that has been reported to the other ranks

_clock = itertools.count(1)  # orders the beginnings of iterators and of calls
_live: weakref.WeakSet[Exchanges] = weakref.WeakSet()
_sent: list[Any] = []  # messages that may never be received; the library reads their memory
_received: dict[str, str] = {}  # class names of other ranks' errors, by the text raised here


class Exchanges:
    """The exchanges of the iterators of a dataset.

    Each iterator has its own name, the same on all ranks, so that a request left over by an
    iterator that ended early is not completed by those of the next iterator.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._iterators = itertools.count()
        self._name = ""  # the name of the last iterator; "" if an error has ended it
        self._dtype: Any = None
        self.began = 0  # when the last iterator began, by _clock
        self._got = 0  # how many elements it has exchanged
        _live.add(self)

    def with_names(self, dataset: Any, dtype: Any, ends_with_error: bool = False) -> Any:
        """(name of the iterator, element) for each element of `dataset`.

        The name is drawn first, so that an error before the first element is reported, too.

        Args:
          dtype: of what the ranks gather.
          ends_with_error: once an element has failed, so does every later get_next, also that of a
            thread that reads ahead; the iterator does not begin anew. The caller must call `got`
            after each exchanged element.
        """
        self._dtype = dtype

        def draw(number: Any) -> Any:
            return tf.ensure_shape(tf.numpy_function(self._name_for, [number], tf.string), [])

        if ends_with_error:
            names = batch_shard.map_on_request(tf.data.Dataset.range(sys.maxsize), draw)
        else:
            names = tf.data.Dataset.range(1).map(draw)
            names = names.flat_map(lambda name: tf.data.Dataset.from_tensors(name).repeat())
        options = tf.data.Options()
        # A thread that reads ahead would ask for more after an error.
        options.experimental_optimization.inject_prefetch = False
        named = tf.data.Dataset.zip((names, dataset)).with_options(options)
        named._tf_mpi_exchanges = self
        return named

    def _name_for(self, number: int) -> bytes:
        """The name of the iterator, for its element of this number."""
        if number == 0:
            self.began, self._got = next(_clock), 0
            self._name = f"allgather {self._label}, iterator {next(self._iterators)}"
        if number and self._got != number:
            raise RuntimeError("no element follows an error")
        return self._name.encode()

    def got(self) -> None:
        """Called when the ranks have exchanged one more element."""
        self._got += 1

    def is_running(self) -> bool:
        return bool(self._name)

    def end(self, error: BaseException | None) -> None:
        """Notes that the iterator has ended. At the normal end of its data this is not necessary.

        Args:
          error: this rank's own, which is reported to the others; None if there is nothing to
            report: it is another rank's, or all ranks have made the last exchange.
        """
        if error is not None:
            message = collectives.Gathering(_message(error).view(self._dtype), self._name)
            _sent.append(message)
        self._name = ""


def current_time() -> int:
    """The time by _clock, for `error_to_raise`."""
    return next(_clock)


@atexit.register
def _withdraw() -> None:
    """Withdraws messages that nobody has requested; called before waiting for the others' end."""
    while _sent:
        _sent.pop().withdraw()


def error_to_raise(error: BaseException, since: int) -> tuple[BaseException, bool]:
    """(error to raise for `error`, which ends a call that began at time `since`; whether all ranks
    know of it)."""
    return _end(error, [one for one in _live if one.began > since])


def iterating(get_next: Any) -> Any:
    """Wraps OwnedIterator._next_internal: reports its error to the ranks that share its batches."""

    def next_element(self: Any) -> Any:
        try:
            return get_next(self)
        except Exception as error:
            raised, _ = _end(error, _exchanges_of(self._dataset))
            if raised is error:
                raise
            raise raised from None

    return next_element


def _exchanges_of(dataset: Any) -> list[Exchanges]:
    own = [dataset._tf_mpi_exchanges] if hasattr(dataset, "_tf_mpi_exchanges") else []
    return own + [one for source in dataset._inputs() for one in _exchanges_of(source)]


def _end(error: BaseException, exchanges: list[Exchanges]) -> tuple[BaseException, bool]:
    """Ends those of `exchanges` that `error` interrupts. Returns as error_to_raise."""
    from tensorflow.python.framework import errors

    if isinstance(error, (StopIteration, errors.OutOfRangeError)):
        return error, False
    received = next((text for text in _received if text in str(error)), None)
    running = [one for one in exchanges if one.is_running()]
    for one in running:
        one.end(error if received is None else None)
    if received is None:
        if running:
            setattr(error, _REPORTED, True)
        return error, hasattr(error, _REPORTED)
    raised: BaseException = getattr(errors, _received[received], errors.UnknownError)(
        None, None, received
    )
    return raised, True


def _message(error: BaseException) -> Any:
    """Bytes that describe `error`: a JSON text, padded to words; its length; _MAGIC."""
    text = json.dumps([group.rank, type(error).__name__, reasons.reason(error)]).encode()
    text += b" " * (-len(text) % _WORD)
    return np.concatenate([np.frombuffer(text, np.int64), [len(text), _MAGIC]]).view(np.uint8)


def raise_if_failed(gathered: Any) -> Any:
    """`gathered`, int64 or bytes; raises if it contains the error of a rank.

    Of bytes only the end is examined, which is enough if at most one rank sends data: before an
    error, the others send nothing or one byte (packing.END). Otherwise the caller must find the
    error, and call passed_or_raise (python_batches.py).
    """
    if gathered.dtype == tf.int64:
        return passed_or_raise(tf.reduce_any(gathered == _MAGIC), gathered)
    end = np.array([_MAGIC]).view(np.uint8)
    last = gathered[-_WORD:]
    failed = tf.cond(tf.size(last) == _WORD, lambda: tf.reduce_all(last == end), lambda: False)
    return passed_or_raise(failed, gathered)


def passed_or_raise(failed: Any, gathered: Any, start: Any = 0) -> Any:
    """`gathered`; raises the error at `start` if `failed` says that there is one."""

    def raised() -> Any:
        text = tf.numpy_function(_decode_failure, [gathered[start:]], tf.string)
        with tf.control_dependencies([tf.debugging.Assert(False, [text])]):
            return tf.identity(gathered)

    checked = tf.cond(failed, raised, lambda: gathered)
    checked.set_shape(gathered.shape)
    return checked


def _decode_failure(gathered: Any) -> bytes:
    data = gathered.view(np.uint8)
    # Another rank's packing.END, one byte, may precede the message.
    words = data[len(data) % _WORD :].view(np.int64)
    end = int(np.argmax(words == _MAGIC))
    text = words[: end - 1].tobytes()[-words[end - 1] :]
    rank, kind, reason = json.loads(text)
    received = f"rank {rank}/{group.size} has stopped: {reason}"
    _received[received] = kind
    return received.encode()
