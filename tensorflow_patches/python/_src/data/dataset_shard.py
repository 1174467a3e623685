"""Datasets that the script iterates itself: this rank's part, if the script or its user asks.

There is no weight here: where a batch does not divide evenly, some ranks have a sample more.
"""

from __future__ import annotations

import itertools
import math
import sys
from typing import Any

from tensorflow.mpi import config
from tensorflow.mpi._src.average import scope
from tensorflow.mpi._src.data import batch_shard, determinism, streams
from tensorflow.mpi._src.messaging import collectives
from tensorflow.mpi._src.presence import presence
from tensorflow.mpi._src.runtime import group, log

_numbers = itertools.count(1)  # of datasets, in program order


def shard(dataset: Any, batched: bool | None) -> Any:
    """See tensorflow.mpi.shard."""
    import tensorflow as tf

    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(f"tf.mpi.shard takes a tf.data.Dataset, not {type(dataset).__name__}")
    if group.size == 1:
        return dataset
    presence.needs_all(f"a data set that tf.mpi.shard has split among {group.size} ranks")
    batched = _has_batches(dataset) if batched is None else batched
    if batched and not batch_shard.is_batched(dataset.element_spec):
        raise ValueError(
            f"tf.mpi.shard: elements of {dataset.element_spec} have no first dimension to split. "
            "Pass batched=False to give each rank whole elements"
        )
    length, sizes = (
        batch_shard.length(dataset),
        batch_shard.batch_sizes(dataset) if batched else None,
    )
    known = "endless" if length == math.inf else length
    stream = streams.same_everywhere(
        streams.Stream(dataset, known, sorted(sizes or ()) or None),
        f"dataset {next(_numbers)}",
        "tf.mpi.shard",
    )
    if batched:
        part = batch_shard.shard_batches(stream.dataset, stream.sizes, batch_shard.plain)
    else:
        part = _every_nth(stream)
    part._tf_mpi_part = True
    scope.share_out()
    if not collectives.called_by_script:
        log.once(
            "each rank iterates its part of a dataset. Gradients are averaged, and Keras's metrics "
            "are of all ranks when a loop has come to the dataset's end; until then, and of "
            "numbers that it computes itself, it has this rank's part, which may decide otherwise "
            "on another rank: tf.mpi.allreduce(value) makes a mean of all ranks'",
            key="of a part",
        )
    return part


def _every_nth(stream: streams.Stream) -> Any:
    """Element i is rank i % size's; the last ones are left out where not all ranks get one."""
    dataset, length = stream.dataset, stream.length
    if stream.fed or length is None:
        return streams.every_nth(dataset, drop_remainder=True)
    if isinstance(length, int):
        dataset = dataset.take(length // group.size * group.size)
    return dataset.shard(group.size, group.rank)


def _has_batches(dataset: Any) -> bool:
    """Whether elements are batches: a batch() made them, or their first dimension is unknown."""
    spec = dataset.element_spec
    if not batch_shard.is_batched(spec):
        return False
    return batch_shard.static_rows(spec) is None or _made_by_batch(dataset)


def _made_by_batch(dataset: Any) -> bool:
    kind = type(dataset).__name__
    if "Unbatch" in kind or "FlatMap" in kind or "Interleave" in kind:
        return False  # its elements are others than its sources'
    return "Batch" in kind or any(map(_made_by_batch, dataset._inputs()))


def iterated(dataset: Any) -> Any:
    """See hooks.dataset_iterated. With TF_MPI_SHARD=dataset it is this rank's part.

    Not where Keras iterates: it has made its part, or looks at all data on purpose. Not what is a
    part already.
    """
    if group.size > 1:
        determinism.note_iteration(dataset)
    if group.size == 1 or config.get("TF_MPI_SHARD") != "dataset":
        return dataset
    if _is_part(dataset) or caller_is_keras():
        return dataset
    from tensorflow.python.eager import context

    if not context.executing_eagerly():
        return shard(dataset, None)
    part = vars(dataset).get("_tf_mpi_iterated")
    if part is None:
        part = dataset._tf_mpi_iterated = shard(dataset, None)
    return part


def _is_part(dataset: Any) -> bool:
    return hasattr(dataset, "_tf_mpi_part") or any(map(_is_part, dataset._inputs()))


def caller_is_keras() -> bool:
    """Whether the innermost code outside TensorFlow is Keras's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _package(frame) in ("tensorflow", "contextlib"):
        frame = frame.f_back
    return _package(frame) in ("keras", "tf_keras")


def _package(frame: Any) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
