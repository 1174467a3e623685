"""This rank's part of a dataset of batches: which samples, with what weight.

Every rank runs the same input pipeline, so that all see the same batches, and takes from each batch
the samples whose position in the stream, modulo the number of ranks, is its rank. A batch that does
not divide evenly gives ranks unequal numbers of samples: each element then becomes a `Shard`, whose
weight makes the plain mean of the ranks' gradients the mean over the batch's samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from tensorflow.mpi._src.runtime import group


class EvenShard(NamedTuple):
    """This rank's samples of a batch of which every rank has as many: all weights are 1.

    It says no more than `data` does, but that there are other ranks' samples, too: the samples that
    a script gives to train_on_batch are no shard. The kinds differ in structure: tf.function traces
    anew for another structure, but not for another class of the same one.
    """

    data: Any


class Shard(NamedTuple):
    """An element of a sharded dataset: this rank's samples of one batch, at least one of them.

    `data` has the structure of the script's batches. `weight`, a float32 scalar, is (samples here)
    * (ranks) / (samples of the batch on all ranks). `first`, an int64 scalar, is the place that the
    first sample has in the batch; each further one is `ranks` places on.
    """

    data: Any
    weight: Any
    first: Any


class MaybeShard(NamedTuple):
    """A Shard whose weight may be 0: then `data` is a stand-in, and only keeps the ranks together.

    Nothing computed from it may count: no gradient, no metric, no output, no moving average.
    `counts`, a boolean scalar, says whether it does.
    """

    data: Any
    weight: Any
    first: Any
    counts: Any


class WholeBatch(NamedTuple):
    """A batch that every rank has whole: they compute the same."""

    data: Any


def maybe_shard(data: Any, weight: Any, first: Any) -> MaybeShard:
    return MaybeShard(data, weight, first, weight > 0)


def is_shard(element: Any) -> bool:
    return isinstance(element, (EvenShard, Shard, MaybeShard))


def data_of(element: Any) -> Any:
    """What the script's own step gets of an element, or its spec."""
    return element.data if is_shard(element) or isinstance(element, WholeBatch) else element


class Counted(NamedTuple):
    """This rank's samples of one batch, and how many: an int64 scalar. 0: `data` is a stand-in."""

    data: Any
    rows: Any


def plain(data: Any, mine: Any, rows: Any, first: Any) -> Any:
    """For shard_batches: the samples, without a weight, and also where they are a stand-in."""
    del mine, rows, first
    return data


def counted(data: Any, mine: Any, rows: Any, first: Any) -> Any:
    """For shard_batches: elements are Counted."""
    del rows, first
    return Counted(data, mine)


def even(data: Any, mine: Any, rows: Any, first: Any) -> Any:
    """For shard_batches, of batches that divide evenly: elements are EvenShards."""
    del mine, rows, first
    return EvenShard(data)


def weighted(sizes: Collection[int] | None) -> Callable[[Any, Any, Any, Any], Any]:
    """For shard_batches: elements are Shards, MaybeShards, or EvenShards if all weights are 1.

    Args:
      sizes: the numbers of samples that batches can have; None if that is not known.
    """
    if sizes and all(size % group.size == 0 for size in sizes):
        return even
    kind = Shard if sizes and min(sizes) >= group.size else maybe_shard
    return lambda data, mine, rows, first: kind(data, weight_of(mine, rows), first)


def shard_batches(
    dataset: Any, sizes: Collection[int] | None, element: Callable[[Any, Any, Any, Any], Any]
) -> Any:
    """This rank's samples of each of the dataset's batches.

    Args:
      dataset: a tf.data.Dataset of batches, the same on all ranks.
      sizes: as for weighted.
      element: makes an element from samples, their number, the batch's, and the place of the first
        in the batch: plain, counted or weighted. A rank that gets no sample of a batch has the
        batch's first as a stand-in.

    Returns:
      A tf.data.Dataset with as many elements. It asks `dataset` for none ahead of need.
    """
    import tensorflow as tf

    spec = dataset.element_spec
    check_rows = _more_than_one_length(spec)
    divides = bool(sizes) and all(size % group.size == 0 for size in sizes or ())

    def step(offset: Any, batch: Any) -> tuple[Any, Any]:
        rows = num_rows(spec, batch)
        if check_rows:
            rows = _all_of(rows, spec, batch)
        if divides:
            place = tf.constant(group.rank, tf.int64)
            return offset, element(_even(spec, batch), rows // group.size, rows, place)
        first = tf.math.floormod(group.rank - offset, group.size)
        nothing = first >= rows
        start = tf.where(nothing, tf.constant(0, tf.int64), first)
        end = tf.where(nothing, tf.minimum(rows, 1), rows)
        indices = tf.range(start, end, group.size)
        mine = tf.where(nothing, tf.constant(0, tf.int64), tf.size(indices, tf.int64))
        shard = element(_take(spec, batch, indices), mine, rows, first)
        return tf.math.floormod(offset + rows, group.size), shard

    return scan(dataset, tf.constant(0, tf.int64), step)


def scan(dataset: Any, state: Any, function: Callable[[Any, Any], tuple[Any, Any]]) -> Any:
    """dataset.scan(state, function), also of elements that tf.data's scan has no words for.

    They leave it as the tensors that they are made of, and are put together when they are asked
    for, not ahead: scan is never made parallel, and what follows it must not be.
    """
    import tensorflow as tf

    try:
        return dataset.scan(state, function)
    except NotImplementedError:
        pass
    made: list[Any] = []

    def taken_apart(before: Any, element: Any) -> tuple[Any, Any]:
        after, found = function(before, element)
        made[:] = [tf.nest.map_structure(tf.type_spec_from_value, found)]
        return after, tuple(tf.nest.flatten(found, expand_composites=True))

    def put_together(*parts: Any) -> Any:
        return tf.nest.pack_sequence_as(made[0], parts, expand_composites=True)

    options = tf.data.Options()
    options.experimental_optimization.map_parallelization = False
    return dataset.scan(state, taken_apart).map(put_together).with_options(options)


def is_batched(spec: Any) -> bool:
    """Whether elements of `spec` have samples along the first dimension of something."""
    return _first_batched(spec) is not None


def element_of(spec: Any, args: tuple[Any, ...]) -> Any:
    """The element that a function of tf.data was given as `args`: only tuples are unpacked."""
    return args if type(spec) is tuple else args[0]


def weight_of(mine: Any, all_ranks: Any) -> Any:
    """A Shard's weight, from the numbers of samples; 0 if nobody has any."""
    import tensorflow as tf

    return tf.math.divide_no_nan(
        tf.cast(mine * group.size, tf.float32), tf.cast(all_ranks, tf.float32)
    )


def static_rows(spec: Any) -> int | None:
    """The number of samples that every batch of `spec` has, if it is part of it."""
    leaf = _first_batched(spec)
    return None if leaf is None else _known_rows(leaf)


def differing_rows(spec: Any) -> list[int] | None:
    """The first dimensions of the tensors of a batch, where they are known to be no one number."""
    known = {_known_rows(leaf) for leaf in _leaves(spec) if _is_batched(leaf)}
    found = sorted(rows for rows in known if rows is not None)
    return found if len(found) > 1 else None


def _more_than_one_length(spec: Any) -> bool:
    """Whether first dimensions are only seen to be equal when a batch is there."""
    batched = [leaf for leaf in _leaves(spec) if _is_batched(leaf)]
    known = {_known_rows(leaf) for leaf in batched}
    return len(batched) > 1 and (None in known or len(known) > 1)


def _all_of(rows: Any, spec: Any, batch: Any) -> Any:
    """`rows`, after a look whether all tensors of `batch` have as many."""
    import tensorflow as tf

    parts = zip(_leaves(spec), _leaves(batch))
    lengths = [_length(part) for leaf, part in parts if _is_batched(leaf)]
    same = [
        tf.debugging.assert_equal(
            length,
            rows,
            "The tensors of a batch have different first dimensions: these are not samples that "
            "ranks could share. Set TF_MPI_SHARD=off, with which each rank has whole batches",
        )
        for length in lengths[1:]
    ]
    with tf.control_dependencies(same):
        return tf.identity(rows)


def rows_of(batch: Any) -> int | None:
    """The number of samples in `batch`, tensors; None if it is not known before the step runs."""
    import tensorflow as tf

    # Arrays, too: an eager step of train_on_batch gets what the script gave it.
    shapes = [tf.TensorShape(p.shape) for p in tf.nest.flatten(batch) if hasattr(p, "shape")]
    first = next((shape for shape in shapes if shape.rank is None or shape.rank > 0), None)
    return None if first is None or first.rank is None else first[0]


def batch_sizes(dataset: Any) -> set[int] | None:
    """All numbers of samples that a batch of `dataset` can have; None if that cannot be told.

    Told from the shapes, or from a batch() behind which nothing changes elements.
    """
    from tensorflow.python.data.ops import batch_op, dataset_ops
    from tensorflow.python.framework import tensor_util

    rows = static_rows(dataset.element_spec)
    if rows is not None:
        return {rows}
    while isinstance(dataset, dataset_ops.UnaryUnchangedStructureDataset):
        dataset = dataset._input_dataset
    if not isinstance(dataset, (batch_op._BatchDataset, batch_op._ParallelBatchDataset)):
        return None
    size = tensor_util.constant_value(dataset._batch_size)
    samples = length(dataset._input_dataset)
    if size is None or samples is None:
        return None
    if samples == math.inf:
        return {int(size)}
    sizes = {int(size)} if samples >= size else set()
    return sizes | {int(samples % size)} if samples % size else sizes


def length(dataset: Any) -> float | None:
    """The number of the dataset's elements, perhaps infinite; None if unknown, as in a graph."""
    from tensorflow.python.data.ops import dataset_ops
    from tensorflow.python.framework import tensor_util

    elements = tensor_util.constant_value(dataset.cardinality())
    if elements is None or elements == dataset_ops.UNKNOWN:
        return None
    return math.inf if elements == dataset_ops.INFINITE else int(elements)


def num_rows(spec: Any, element: Any) -> Any:
    """The number of samples in a batch: an int64 scalar tensor."""
    specs, parts = _leaves(spec), _leaves(element)
    return _length(parts[next(i for i, leaf in enumerate(specs) if _is_batched(leaf))])


def _length(part: Any) -> Any:
    import tensorflow as tf
    from tensorflow.python.framework import composite_tensor

    if isinstance(part, tf.SparseTensor):
        return part.dense_shape[0]
    if isinstance(part, tf.RaggedTensor):
        return tf.cast(part.nrows(), tf.int64)
    if isinstance(part, composite_tensor.CompositeTensor):
        part = _encoded(part)[0]
    return tf.shape(part, tf.int64)[0]


def _encoded(part: Any) -> list[Any]:
    """The tensors that tf.data keeps of a batch of another type, with samples first."""
    return list(part._type_spec._to_batched_tensor_list(part))


def _leaves(structure: Any) -> list[Any]:
    import tensorflow as tf

    return list(tf.nest.flatten(structure))


def _first_batched(spec: Any) -> Any:
    return next((leaf for leaf in _leaves(spec) if _is_batched(leaf)), None)


def _is_batched(spec: Any) -> bool:
    """Whether what `spec` describes has samples along its first dimension."""
    import tensorflow as tf

    if not isinstance(spec, (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec)):
        return _is_batched_otherwise(spec)
    return spec.shape.rank is None or spec.shape.rank > 0


def _is_batched_otherwise(spec: Any) -> bool:
    """Whether it is a batch of another type, which says what its samples are: a
    BatchableExtensionType, or as libraries of graphs have it."""
    import tensorflow as tf
    from tensorflow.python.framework import type_spec

    if isinstance(spec, tf.OptionalSpec) or not isinstance(spec, type_spec.BatchableTypeSpec):
        return False
    try:
        spec._unbatch()
    except (ValueError, NotImplementedError):
        return False
    return True


def of_unknown_samples(spec: Any) -> str | None:
    """The name of a type in elements of `spec` that does not say what its samples are."""
    import tensorflow as tf
    from tensorflow.python.framework import composite_tensor

    known = (tf.RaggedTensor, tf.SparseTensor, tf.experimental.Optional)
    for leaf in _leaves(spec):
        kind = getattr(leaf, "value_type", type(None))
        if issubclass(kind, composite_tensor.CompositeTensor) and not issubclass(kind, known):
            if not _is_batched(leaf):
                return str(kind.__name__)
    return None


def _known_rows(leaf: Any) -> int | None:
    """The first dimension of something batched, if it is part of its spec."""
    import tensorflow as tf

    if not isinstance(leaf, (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec)):
        leaf = leaf._flat_tensor_specs[0]
    return leaf.shape[0] if leaf.shape.rank else None


def _even(spec: Any, element: Any) -> Any:
    """Of a batch that divides evenly: its length, if known, stays part of the shape."""
    import tensorflow as tf

    rows = static_rows(spec)
    if rows is None:
        return _take(spec, element, tf.range(group.rank, num_rows(spec, element), group.size))
    indices = range(group.rank, rows, group.size)
    return _take(spec, element, tf.constant(list(indices), tf.int64))


def _take(spec: Any, element: Any, indices: Any) -> Any:
    """The samples of `element` at `indices`, an int64 vector that counts up in equal steps.

    What is no batch (a scalar, a length of its own, an absent input) stays as it is.
    """
    import tensorflow as tf

    rows = static_rows(spec)

    def take(leaf: Any, part: Any) -> Any:
        if not _is_batched(leaf):
            return part
        if _known_rows(leaf) is not None and rows not in (None, _known_rows(leaf)):
            return part
        if isinstance(part, tf.SparseTensor):
            return _take_sparse(part, indices)
        if isinstance(part, (tf.Tensor, tf.RaggedTensor)):
            return tf.gather(part, indices)
        mine = leaf._unbatch()._batch(indices.shape[0])
        return mine._from_compatible_tensor_list([tf.gather(t, indices) for t in _encoded(part)])

    return tf.nest.map_structure(take, spec, element)


def _take_sparse(part: Any, indices: Any) -> Any:
    import tensorflow as tf

    first, count = indices[0], tf.size(indices, tf.int64)
    row = part.indices[:, 0] - first
    keep = (row >= 0) & (row % group.size == 0) & (row // group.size < count)
    kept = tf.sparse.retain(part, keep)
    rows = tf.boolean_mask(row // group.size, keep)
    shape = tf.concat([[count], part.dense_shape[1:]], 0)
    return tf.SparseTensor(tf.concat([rows[:, None], kept.indices[:, 1:]], 1), kept.values, shape)
