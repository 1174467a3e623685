"""Datasets that the script iterates: this rank's part, if the script or the user asks for it.

Parts have no weight here: if a batch does not divide evenly, some ranks get one sample more.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.mpi import config
from tensorflow.mpi._src.average import scope
from tensorflow.mpi._src.data import (
    batch_shard,
    input_stats,
    iterations,
    selection,
    streams,
    transformations,
)
from tensorflow.mpi._src.messaging import collectives
from tensorflow.mpi._src.presence import presence
from tensorflow.mpi._src.runtime import group, log, threads

_numbers = itertools.count(1)  # of datasets, in program order
_local = threading.local()  # .reads_all


def shard(dataset: Any, batched: bool | None) -> Any:
    """See tensorflow.mpi.shard."""
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(f"tf.mpi.shard takes a tf.data.Dataset, not {type(dataset).__name__}")
    if group.size == 1:
        return dataset
    presence.needs_all(f"a dataset that tf.mpi.shard has divided among {group.size} ranks")
    batched = _has_batches(dataset) if batched is None else batched
    if batched and not batch_shard.is_batched(dataset.element_spec):
        raise ValueError(
            f"tf.mpi.shard: elements of {dataset.element_spec} have no first dimension to split. "
            "Pass batched=False to give each rank whole elements"
        )
    length = batch_shard.length(dataset)
    sizes = batch_shard.batch_sizes(dataset) if batched else None
    num_batches = "endless" if length == math.inf else length
    stream = streams.same_everywhere(
        streams.Stream(dataset, num_batches, sorted(sizes or ()) or None),
        f"dataset {next(_numbers)}",
        "tf.mpi.shard",
    )
    if batched:
        part = selection.shard_batches(stream, batch_shard.plain)
    else:
        part = _every_nth(stream)
    part._tf_mpi_part = True
    part_sizes = {size / group.size for size in sizes or ()}
    even = part_sizes and all(rows.is_integer() for rows in part_sizes)
    scope.note_divided({int(rows) for rows in part_sizes} if even else None)
    if sizes and not even and not collectives.combined_by_script:
        listed = " and ".join(map(str, sorted(sizes)))
        log.once(
            f"a loop over batches of {listed} samples, which do not divide among {group.size} "
            "ranks: samples of a smaller part weigh more, and each rank draws its own random "
            "numbers for samples, so this is not one process's result. Use a batch size that is a "
            f"multiple of {group.size}, with drop_remainder=True",
            key="parts of unequal size",
        )
    if not collectives.combined_by_script:
        log.once(
            "each rank iterates its part of the dataset. Gradients are averaged. Keras metrics "
            "cover all ranks once the loop has reached the dataset's end; before that, and in "
            "values that the loop computes itself, a rank sees only its part and may decide "
            "differently from the others. tf.mpi.allreduce(value) is the mean over ranks",
            key="of a part",
        )
    return part


def _every_nth(stream: streams.Stream) -> Any:
    """Element i belongs to rank i % size; the last, incomplete turn is dropped."""
    dataset, length = stream.dataset, stream.length
    if stream.exchanged or length is None:
        return streams.every_nth(dataset, drop_remainder=True)
    if isinstance(length, int):
        dataset = dataset.take(length // group.size * group.size)
    return selection.every_nth(dataset, _has_batches(dataset))


def _has_batches(dataset: Any) -> bool:
    """Whether elements are batches: made by batch(), or of unknown first dimension."""
    spec = dataset.element_spec
    if not batch_shard.is_batched(spec):
        return False
    return batch_shard.static_rows(spec) is None or transformations.has_batches(dataset)


def splits_loops() -> bool:
    """Whether every dataset that the script iterates itself is divided."""
    return bool(config.get("TF_MPI_SHARD") == "dataset")


def iterated(dataset: Any) -> Any:
    """See hooks.dataset_iterated. With TF_MPI_SHARD=dataset, this rank's part of the dataset.

    It stays undivided if Keras has divided it (without_sharding), if a function reads all data on
    purpose (reads_all_data), or if it is a part already. Shuffles continue as in iterations.py.
    """
    if group.size == 1:
        return _with_counts(dataset, dataset)
    part = _part_of(dataset) if splits_loops() else dataset
    return _with_counts(part, iterations.to_iterate(part))


def _with_counts(original: Any, to_iterate: Any) -> Any:
    """`to_iterate`, with its samples counted if `original` is Keras's or a part."""
    if not input_stats.on():
        return to_iterate
    of_keras = hasattr(original, "_tf_mpi_of_keras")
    if not of_keras and (getattr(_local, "reads_all", False) or not is_part(original)):
        return to_iterate
    batches = of_keras or _has_batches(original)
    return batch_shard.count_used(to_iterate, batches, transformations.gets_prefetch(original))


def _part_of(dataset: Any) -> Any:
    if hasattr(dataset, "_tf_mpi_undivided") or getattr(_local, "reads_all", False):
        return dataset
    if is_part(dataset):
        _warn_of_mixed_zip(dataset)
        return dataset
    if not tf.executing_eagerly():
        return shard(dataset, None)  # not kept: it belongs to this graph
    part = vars(dataset).get("_tf_mpi_iterated")
    if part is None:
        part = dataset._tf_mpi_iterated = shard(dataset, None)
    return part


def is_part(dataset: Any) -> bool:
    """Whether it is this rank's part of a dataset, or made from one."""
    return any(hasattr(one, "_tf_mpi_part") for one in _down_to_parts(dataset))


def tracing(original: Any) -> Any:
    """Wraps StructuredFunctionWrapper.__init__: after a dataset was divided, the functions of other
    datasets still draw the same numbers on all ranks."""

    def init(self: Any, func: Any, name: Any, dataset: Any = None, *args: Any, **given: Any) -> Any:
        same = dataset is not None and not is_part(dataset)
        with scope.replicated_step() if same else contextlib.nullcontext():
            original(self, func, name, dataset, *args, **given)

    return init


def _down_to_parts(dataset: Any) -> Iterator[Any]:
    """`dataset` and what it is made from, each once, but nothing that a part is made from."""
    pending, seen = [dataset], set[int]()
    while pending:
        one = pending.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            pending += () if hasattr(one, "_tf_mpi_part") else one._inputs()


def _warn_of_mixed_zip(dataset: Any) -> None:
    zips = filter(transformations.is_zip, _down_to_parts(dataset))
    if any(len(set(map(is_part, one._inputs()))) > 1 for one in zips):
        log.once(
            "a loop over a zip pairs this rank's part of one dataset with all of another, so the "
            "pairs differ from one process's. If that matters, pass each zipped dataset to "
            "tf.mpi.shard, or zip them undivided",
            key="a mixed zip",
        )


def without_sharding(dataset: Any) -> Any:
    """The same dataset, never divided again: for Keras, which has divided it."""
    if not (splits_loops() or input_stats.on()):
        return dataset
    whole = dataset.with_options(tf.data.Options())  # the script may iterate its own dataset, too
    whole._tf_mpi_undivided = whole._tf_mpi_of_keras = True
    return whole


def reads_all_data(function: Any) -> Any:
    """Wraps a function that reads all data: datasets that it iterates are not divided."""

    def read_all(*args: Any, **kwargs: Any) -> Any:
        with threads.inside(_local, reads_all=True):
            return function(*args, **kwargs)

    return read_all
