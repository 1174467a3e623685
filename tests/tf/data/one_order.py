"""Undefined orders and unseeded draws; iterations that end early; failures on one rank.

Prints what this rank sees in each case.
"""

from __future__ import annotations

import functools
import tempfile
import time
from typing import Any

import keras
import tensorflow as tf
from common import result
from tensorflow.mpi._src.data import determinism

Data = tf.data.Dataset
RANK = tf.mpi.rank()


def late(i: Any) -> Any:
    """The first elements take longest, so without a fixed order they would come last."""
    turns = tf.where(i % 8 == 0, 2000, 0)
    return i + tf.cast(tf.while_loop(lambda n: n < turns, lambda n: (n + 1,), (0,))[0], i.dtype) * 0


def inner(k: Any, **how: Any) -> Any:
    return Data.range(k * 8, k * 8 + 8).map(late, **how)


ANY: dict[str, Any] = {"num_parallel_calls": 4, "deterministic": False}


def with_option(dataset: Any) -> Any:
    options = tf.data.Options()
    options.deterministic = False
    return dataset.with_options(options)


OPEN = {
    "map": lambda: inner(0, **ANY),
    "interleave": lambda: Data.range(4).interleave(inner, cycle_length=4, **ANY),
    "map in flat_map": lambda: Data.range(2).flat_map(lambda k: inner(k, **ANY)),
    "option": lambda: with_option(inner(0, num_parallel_calls=4)),
    "option of flat_map": lambda: with_option(
        Data.range(2).flat_map(lambda k: inner(k, num_parallel_calls=4))
    ),
    "batch": lambda: inner(0, **ANY).batch(2, **ANY).unbatch(),
    "sloppy": lambda: Data.range(4).apply(
        tf.data.experimental.parallel_interleave(inner, cycle_length=4, sloppy=True)
    ),
    # nothing in these is undefined that a rank could not determine itself
    "shuffle in flat_map": lambda: Data.range(2).flat_map(lambda k: inner(k).shuffle(8)),
    "checked": lambda: Data.range(8).map(
        lambda i: tf.debugging.check_numerics(tf.cast(i, tf.float32), "finite")
    ),
}


def opened(make: Any) -> Any:
    tf.random.set_seed(None)
    dataset = make()
    return {
        "seen": [[int(number) for number in dataset] for _ in range(2)],
        "known": determinism.description(dataset),
    }


def first_of(dataset: Any, count: int) -> list[int]:
    """Reads from a new iterator, which is dropped after it has read ahead."""
    iterator = iter(dataset)
    found = [int(next(iterator)) for _ in range(count)]
    time.sleep(0.02)
    return found


def cut_short() -> dict[str, Any]:
    """The orders of consecutive iterations of a shuffle and of datasets made from it."""

    def shuffled() -> Any:
        return Data.range(6).shuffle(6, seed=3)

    ahead = 20
    again = shuffled()
    endless = shuffled().repeat().map(lambda i: i).prefetch(ahead)
    cached = Data.range(6).map(lambda i: i).cache().shuffle(6, seed=3).repeat().prefetch(ahead)
    third = Data.range(2).concatenate(shuffled()).prefetch(ahead)
    shared = shuffled()
    twice = shared.repeat(2).prefetch(ahead)
    buffered = shuffled()
    list(buffered.repeat(2).shuffle(tf.data.UNKNOWN_CARDINALITY).take(1))
    counted, saved = shuffled(), shuffled()
    counted.reduce(0, lambda number, _: number + 1)
    saved.save(tempfile.mkdtemp())
    return {
        "orders": [[int(i) for i in again] for _ in range(12)],
        "endless": [first_of(endless, 6) for _ in range(8)],
        "cached": [first_of(cached, 6) for _ in range(8)],
        "behind": [first_of(third, 2) + first_of(third, 8)[2:] for _ in range(4)],
        "whole": [[int(i) for i in twice] for _ in range(2)],
        "shared": [int(i) for i in shared],
        "buffered": [int(i) for i in buffered],
        "counted": [[int(i) for i in one] for one in (counted, saved)],
        "of parts": of_part(counted.batch(2)) + of_part(saved.batch(2)),
        "taken": [[int(i) for i in endless.take(number)] for number in (2, 9, 1)],
    }


def looped(i: Any) -> Any:
    return tf.while_loop(lambda x: x < 3.0, lambda x: (x + tf.random.uniform([]),), (0.0,))[0]


def one_of_two(i: Any) -> Any:
    return tf.cond(
        tf.random.uniform([]) < 0.5, lambda: tf.random.normal([]), lambda: tf.cast(i, tf.float32)
    )


flip = keras.layers.RandomBrightness(0.2, value_range=(0, 1), seed=3)
generator_of_numbers = tf.random.Generator.from_seed(5)
DRAWN: dict[str, Any] = {
    "uniform": lambda i: tf.random.uniform([]),
    "seeded": lambda i: tf.random.normal([], seed=4),
    "several": lambda i: tf.random.uniform([], seed=1) - tf.random.uniform([], seed=1),
    "generator": lambda i: generator_of_numbers.normal([]),
    "layer": lambda i: flip(tf.fill([2, 2, 3], 0.5), training=True)[0, 0, 0],
    "image": lambda i: tf.image.random_crop(tf.reshape(tf.range(99.0), [9, 11]), [2, 2])[0, 0],
    "branch": one_of_two,
    "loop": looped,
}


def drawn(function: Any) -> dict[str, Any]:
    """Numbers drawn by a parallel map, in two passes of one iteration and in another one."""
    dataset = Data.range(8).map(function, num_parallel_calls=4)
    known = determinism.description(dataset)
    if known is None:
        return {"known": None}
    passes = [float(number) for number in dataset.repeat(2)]
    return {
        "known": known,
        "numbers": [passes[:8], passes[8:], [float(number) for number in dataset]],
        "wall": determinism.why_not_delayed(dataset._map_func),
        "name": dataset._map_func._func.__name__,
    }


def views() -> list[list[float]]:
    """Two draws per sample by one function; a global seed gives all its traces the same seed."""
    tf.random.set_seed(3)
    both = [Data.range(8).map(DRAWN["uniform"], tf.data.AUTOTUNE) for _ in range(2)]
    return [[float(number) for number in pair] for pair in Data.zip(tuple(both))]


def elements_of_part() -> list[list[int]]:
    """Vectors that a random map makes, not batches."""

    def noisy(i: Any) -> Any:
        return tf.fill([4], i) + tf.cast(tf.floor(tf.random.uniform([])), tf.int64)

    part = tf.mpi.shard(Data.range(8).map(noisy, num_parallel_calls=4))
    return [[int(number) for number in element] for element in part]


def of_part(dataset: Any) -> list[list[float]]:
    """This rank's samples in two iterations."""
    part = tf.mpi.shard(dataset)
    return [[float(i) for rows in part for i in rows] for _ in range(2)]


def cached() -> dict[str, Any]:
    """A cache has the order and the numbers of its first complete pass for all its users: a
    preview, a rank's part, and a loop over all of it."""
    shuffled = Data.range(6).shuffle(6, seed=3)
    samples = shuffled.map(lambda i: i).cache()
    batches = shuffled.map(lambda i: i).batch(2).cache()
    numbers = Data.range(8).map(DRAWN["uniform"], num_parallel_calls=4).cache()
    return {
        "look": first_of(samples, 2),
        "samples": of_part(samples.batch(2)),
        "all samples": [int(i) for i in samples],
        "batches": of_part(batches),
        "all batches": [int(i) for rows in batches for i in rows],
        "shuffled": [int(i) for i in shuffled],
        "numbers": of_part(numbers.batch(2)),
        "all numbers": [float(i) for i in numbers],
    }


def failing(i: Any) -> Any:
    """A random function, so that rank 0 sends its data; sample 13 cannot be read."""
    value = 1.0 / tf.cast(i - 13, tf.float32)
    return tf.random.uniform([1], seed=3) + tf.debugging.check_numerics(value, "sample 13")


def of_rank_1(fails: int) -> Any:
    for i in range(24):
        if i == fails and RANK == 1:
            raise OSError(f"file {i} is gone")
        yield [float(i)]


def fit(dataset: Any, **how: Any) -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", **how)
    model.fit(dataset.batch(4).map(lambda x: (x, x)), verbose=0)


def loop(dataset: Any) -> None:
    for _ in tf.mpi.shard(dataset.batch(4)):
        pass


def said(use: Any, dataset: Any) -> list[Any]:
    """The error. The ranks meet afterwards, so nobody learns of it from the end of another rank."""
    try:
        use(dataset)
    except tf.errors.OpError as error:
        tf.mpi.barrier()
        return [type(error).__name__, str(error)]
    return []


unreadable = Data.range(24).map(failing)
generators = [
    Data.from_generator(of_rank_1, args=(fails,), output_signature=tf.TensorSpec([1]))
    for fails in (0, 9)
]
result(
    {
        "open": {name: opened(make) for name, make in OPEN.items()},
        "cut short": cut_short(),
        # After a part was made; these datasets are not parts.
        "drawn": {name: drawn(function) for name, function in DRAWN.items()},
        "failed": {
            "fit": said(fit, unreadable),
            "eager fit": said(functools.partial(fit, run_eagerly=True), unreadable),
            "loop": said(loop, unreadable),
            "first of rank 1": said(fit, generators[0]),
            "generator of rank 1": said(fit, generators[1]),
            "after that": said(fit, Data.range(24).map(lambda i: tf.random.uniform([1], seed=3))),
        },
        "cached": cached(),
        "elements": elements_of_part(),
        "views": views(),  # the last case, because it leaves a seed set
    }
)
