"""Batches that Python code makes by index: each of N ranks makes every Nth batch.

`data[i]` is batch i of a PyDataset of Keras 3, or of a Sequence of tf_keras. Rank r makes the
batches at positions r, r + N, ... of an epoch, ahead of time. When a turn of N batches is needed,
the ranks exchange them, and each has all of them; from there on they are treated as batches from
rank 0 (feeds.py). Batches.why_not says what cannot be shared; see
docs/decisions/078-python-batches.md.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import inspect
import io
import itertools
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.mpi._src.data import (
    batch_shard,
    contents,
    failures,
    input_stats,
    packing,
    streams,
)
from tensorflow.mpi._src.messaging import control_plane
from tensorflow.mpi._src.random import entropy, generators, host, own_rows
from tensorflow.mpi._src.runtime import group, log

# The first words of a turn's messages (packing.py); that of an error (failures.py) is larger.
_NOTHING, _BATCH = 0, 1
_COMPARED = 1000  # elements of a list, at its beginning and at its end
_ENDLESS = -1
# Of class attributes and global variables, only those of these types are compared.
_STATE = (int, float, list, dict, set, np.ndarray, Iterator)


class Watched:
    """Wraps the script's dataset while Keras reads its first batches; records what they change."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.digests: list[list[int]] = []  # of the batches
        # Of the last batch:
        self.changed: list[str] = []  # descriptions of the state that it changed, for messages
        self.drawn: list[Any] = []  # the generators that it drew from
        self.draws = 0  # the number of draws by TensorFlow's random ops

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dataset, name)

    def __getitem__(self, index: int) -> Any:
        reached = generators.reached_from(self.dataset)
        before = _snapshot(self.dataset)
        states = {id(one): generators.digest([generators.state(one)]) for one in reached}
        draws = own_rows.draws_made()
        batch = self.dataset[index]
        self.draws = own_rows.draws_made() - draws
        # An object in place of None or nothing, such as an opened file, is no change. Lists are
        # compared, because a NaN equals itself in a list.
        self.changed = [
            name
            for name, value in _snapshot(self.dataset).items()
            if [before.get(name)] != [value]
            and (before.get(name) or not isinstance(value, _Object))
        ]
        after = generators.reached_from(self.dataset)
        self.drawn = [
            generator
            for generator in after
            if states.get(id(generator)) != generators.digest([generators.state(generator)])
        ]
        leaves = tf.nest.flatten(batch, expand_composites=True)
        self.digests.append([found for leaf in leaves for found in contents.of_array(leaf)])
        return batch


class Batches:
    """Makes batches by the script's Python code, on this rank.

    Args:
      watched: what was observed when it made some batches.
      standardize: converts what the script returns to what Keras expects.
      length: returns the number of batches; None for an infinite dataset.
      order: for a number of batches, returns the order in which Keras's next epoch uses them.
      workers, processes: how many threads, or processes if `processes`, make batches.
      ahead: how many batches they make ahead.
      pool: returns the class of a pool of workers; its argument: whether these are processes.
    """

    def __init__(
        self,
        dataset: Any,
        watched: Watched,
        standardize: Callable[[Any], Any],
        length: Callable[[], int | None],
        *,
        order: Callable[[int], list[int]],
        workers: int,
        processes: bool,
        ahead: int,
        pool: Callable[[bool], Any],
    ) -> None:
        self.dataset = dataset
        self._watched = watched
        self._standardize = standardize
        self._length = length
        self._order = order
        self._workers, self._processes = workers, processes
        self._pooled = workers > 1 or (workers > 0 and processes)
        self._ahead, self._pool = max(ahead, 1), pool
        self._iterations = 0
        self.shared = False  # whether each rank makes its share of the batches

    def why_not(self) -> str | None:
        """Why the ranks must not make different batches, for users; None if they may."""
        watched = self._watched
        if not watched.digests:
            return "made no batch that the ranks could compare"
        if watched.changed:
            return f"changes {watched.changed[0]} when it makes a batch"
        if self._pooled and self._length() is None:
            return "has workers and no length, so it continues in the next epoch where it stopped"
        if self._workers > 1 or not (watched.drawn or watched.draws):
            return None
        from tensorflow.python.eager import context

        seeded = [one for one in watched.drawn if not generators.is_unseeded(one)]
        # Keras takes seeds for TensorFlow's ops from Python's random.
        if watched.draws and (host.has_seeded("python") or context.global_seed() is not None):
            seeded.append(tf.random)
        if seeded:
            return (
                "draws from a seeded generator: to repeat one process's numbers, batches must be "
                "made one after the other. With workers=2, whose order is left to chance anyway, "
                "the ranks would share the work"
            )
        return None

    def description(self) -> list[Any]:
        """Values that must be equal on all ranks: the length, and digests of batches and state."""
        length = self._length()
        return [_ENDLESS if length is None else length, self._watched.digests, self._digest()]

    def _digest(self) -> int:
        """A digest of what determines the batches, as far as it can be compared between ranks."""
        states = list(map(generators.state, generators.reached_from(self.dataset)))
        return zlib.crc32(repr(_numbers_in(self.dataset)).encode(), generators.digest(states))

    def begin(self) -> Any:
        """This rank's values for the start of an iteration: [digest]; on rank 0 [seed, length,
        *order, digest]."""
        self._iterations += 1
        length, digest = self._length(), self._digest()
        seed = zlib.crc32(f"{digest} {self._iterations}".encode())
        order = [] if length is None else self._order(length)  # advances random on every rank
        if group.rank != 0:
            return np.array([digest], np.int64)
        return np.array([seed, _ENDLESS if length is None else length, *order, digest], np.int64)

    def turns(self, begun: Any) -> Iterator[Any]:
        """Yields, for each turn of an iteration, (whether this rank has a batch, the batch).

        An error is raised after a turn without a batch, so that all ranks get the batches before
        it. The other ranks receive the error in the next turn (failures.py).

        Args:
          begun: the results of all ranks' `begin`, concatenated.
        """
        self._starts.end(None)  # all ranks have exchanged what `begin` returned
        seed, length, digests = int(begun[0]), int(begun[1]), begun[-group.size :]
        order = begun[2 : -group.size]
        makers = group.size if len(set(digests.tolist())) == 1 else 1
        if makers == 1:
            log.once(
                f"{_name(self.dataset)}: numbers in the dataset, or the states of its random "
                "generators, differ between the ranks, so rank 0 makes all batches. To share the "
                "work, create the dataset with the same arguments and seeds on all ranks",
                key=f"python batches of rank 0 {_name(self.dataset)}",
            )
        nothing = streams.stand_in(self.spec)
        positions: Any = itertools.count(group.rank, makers)
        if length != _ENDLESS:
            positions = range(group.rank, length, makers)
        if group.rank >= makers:
            positions = range(0)
        made = 0
        try:
            jobs = ((int(order[at]) if len(order) else at, seed + at) for at in positions)
            for batch in self._make(jobs):
                yield True, self._standardize(batch)
                made += 1
        except Exception:
            yield False, nothing
            raise
        rest = range(made, -(-length // makers) + 1)  # one more: it may bring the last turn's error
        for _ in rest if length != _ENDLESS else itertools.count():
            yield False, nothing

    def _make(self, jobs: Iterator[tuple[int, int]]) -> Iterator[Any]:
        """Makes the batch of each of `jobs`, (index, seed), in this order."""
        drawn = self._watched.drawn
        if not self._pooled:
            for job in jobs:
                states = list(map(generators.state, drawn))
                try:
                    batch = _make_batch(self.dataset, drawn, *job)
                finally:
                    for generator, state in zip(drawn, states):
                        generators.put(generator, state)
                yield batch
            return
        states = list(map(generators.state, drawn))
        worker = (self.dataset, drawn)
        make = _make_in_worker if self._processes else functools.partial(_make_batch, *worker)
        begins = (_begin_worker, worker) if self._processes else ()
        pool = self._pool(self._processes)(self._workers, *begins)
        try:
            waiting: collections.deque[Any] = collections.deque()
            while True:
                for job in itertools.islice(jobs, self._ahead - len(waiting)):
                    waiting.append(pool.apply_async(make, job))
                if not waiting:
                    return
                batch = waiting.popleft().get()
                if not waiting and not self._processes:
                    # The worker threads have reseeded the generators, and draw no more.
                    for generator, state in zip(drawn, states):
                        generators.put(generator, state)
                yield batch
        finally:
            pool.terminate()

    def as_dataset(self, spec: Any, label: str) -> Any:
        """A tf.data.Dataset of all batches, of `spec`; all ranks iterate it in lockstep."""
        self.shared, self.spec = True, spec
        signature = (tf.TensorSpec([], tf.bool), spec)

        def begin(element: Any) -> Any:
            mine = tf.ensure_shape(tf.numpy_function(self.begin, [], tf.int64), [None])
            return streams.gather(mine, element[0])

        def message(has_batch: Any, batch: Any) -> Any:
            if input_stats.on():
                rows = batch_shard.num_rows(spec, batch)
                input_stats.add(made=tf.where(has_batch, rows, 0))
            return tf.cond(
                has_batch, lambda: packing.pack(batch), lambda: packing.message(_NOTHING, [])
            )

        def own(begun: Any) -> Any:
            made = tf.data.Dataset.from_generator(
                self.turns, output_signature=signature, args=(begun,)
            )
            packed = batch_shard.map_on_request(made, lambda element: message(*element))
            return packed if self._pooled else packed.prefetch(1)

        def next_part(turn: Any, start: Any) -> tuple[Any, Any]:
            word, end = packing.read_header(turn, start)
            return end, (word, start)

        def checked(element: Any) -> Any:
            """A turn; raises the error of a rank, before any of the turn's batches is used."""
            name, mine = element
            turn, zero = streams.gather(mine, name), tf.constant(0, tf.int64)
            _, (word, start) = tf.while_loop(
                lambda end, part: (part[0] <= _BATCH) & (end < tf.size(turn, tf.int64)),
                lambda end, part: next_part(turn, end),
                (zero, (zero, zero)),
            )
            return failures.passed_or_raise(word > _BATCH, turn, start)

        def batches(turn: Any) -> Any:
            found = tf.data.Dataset.range(group.size).scan(
                tf.constant(0, tf.int64), lambda start, _: next_part(turn, start)
            )
            found = found.take_while(lambda word, start: word == _BATCH)
            return batch_shard.map_on_request(
                found, lambda part: packing.unpack(spec, turn, part[1])
            )

        self._starts = failures.Exchanges(f"{label} begins")
        start = self._starts.with_names(tf.data.Dataset.from_tensors(0), np.int64)
        mine = input_stats.mark_counted(batch_shard.map_on_request(start, begin).flat_map(own))
        turns = batch_shard.map_on_request(streams.named(mine, label), checked)
        return turns.flat_map(batches)


def dataset_of_all(batches: Batches, spec: Any, label: str) -> Any:
    """A dataset of all batches, of which each rank makes its share. Collective.

    None if they must not be shared, or if the ranks' datasets differ.
    """
    why = batches.why_not()
    if any(isinstance(leaf, tf.OptionalSpec) for leaf in tf.nest.flatten(spec)):
        why = "yields None for a part of a batch"
    mine = [why, batches.description(), packing.encode_spec(spec)]
    everyone = control_plane.headers(f"{label}, of Python", mine)
    reasons = [theirs[0] for theirs in everyone if theirs[0]]
    if reasons:
        log.once(
            f"{_name(batches.dataset)}: every rank makes all batches, because it {reasons[0]}",
            key=f"python batches {reasons[0]}",
        )
        return None
    if any(theirs != everyone[0] for theirs in everyone):
        return None  # streams.py compares what they yield
    return batches.as_dataset(spec, label)


def _name(dataset: Any) -> str:
    return f"{type(dataset).__name__}.__getitem__"


# In a process that makes batches: the dataset, and the generators that it draws from.
_of_worker: tuple[Any, list[Any]] = (None, [])


def _begin_worker(dataset: Any, drawn: list[Any]) -> None:
    global _of_worker
    _of_worker = dataset, drawn


def _make_in_worker(index: int, seed: int) -> Any:
    return _make_batch(*_of_worker, index, seed)


def _make_batch(dataset: Any, drawn: list[Any], index: int, seed: int) -> Any:
    """Batch `index`; the generators in `drawn` are reseeded by `seed`, and left so."""
    for number, generator in enumerate(drawn):
        generators.reseed(generator, seed + (number << 32))
    with entropy.drawing_for(f"batch {seed}"):
        return dataset[index]


def _snapshot(dataset: Any) -> dict[str, Any]:
    """State that may differ between batches, by description, to detect changes.

    That is the dataset's attributes, its classes', and global variables that `__getitem__` names.
    """
    get = inspect.unwrap(type(dataset).__getitem__)
    code, scope = getattr(get, "__code__", None), getattr(get, "__globals__", {})
    found = {
        f"the global variable '{name}'": _content(scope[name])
        for name in getattr(code, "co_names", ())
        if isinstance(scope.get(name), _STATE)
    }
    for kind in reversed(type(dataset).__mro__):
        held = vars(kind).items()
        found |= {_attribute(name): _content(one) for name, one in held if isinstance(one, _STATE)}
    held = getattr(dataset, "__dict__", {}).items()
    return found | {_attribute(name): _content(value) for name, value in held}


def _attribute(name: str) -> str:
    return f"its attribute '{name}'"


def _content(value: Any) -> Any:
    """What is compared of `value`: itself, its size, a file's position, or its identity."""
    if value is None or isinstance(value, (bool, int, float, str, bytes, np.generic)):
        return value
    if isinstance(value, np.ndarray):
        return contents.of_array(value)
    if isinstance(value, (list, tuple)):
        ends = [*value[:_COMPARED], *value[-_COMPARED:]]
        return len(value), [one if _is_plain(one) else id(one) for one in ends]
    if isinstance(value, (dict, set)):
        values = value.values() if isinstance(value, dict) else ()
        return len(value), [one for one in values if _is_plain(one)][:_COMPARED]
    if isinstance(value, io.IOBase) and not value.closed:
        with contextlib.suppress(OSError):  # not seekable, or a text file after next()
            return _Object((id(value), value.tell()))
    if isinstance(value, Iterator):
        return object()  # its position cannot be read: assumed to have changed
    return _Object((id(value), repr(_numbers_in(value))))


class _Object(tuple[Any, ...]):
    """The identity of an object, with a file's position or the numbers in it."""


def _is_plain(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str, bytes, np.number))


def _numbers_in(owner: Any) -> list[Any]:
    """Numbers in the owner's attributes, which are the same on ranks with the same data."""
    found: list[Any] = []
    for value in generators.values_in(owner):
        if isinstance(value, (bool, int, float, np.number)):
            found.append(value)
        elif isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            found.append(contents.of_array(value))
        elif isinstance(value, list) and value and isinstance(value[0], (int, float, np.number)):
            found.append([one for one in value if isinstance(one, (int, float, np.number))])
    return found
