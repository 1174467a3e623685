"""This rank's part of a dataset of batches: which samples, with what weight.

All ranks see the same batches, from equal pipelines or from rank 0 (streams.py), and each takes a
slice of every batch (docs/decisions/072-rows-together.md says why a slice). Of B samples rank r of
N has (B + r) // N, those after rank r - 1's. selection.py avoids work for other ranks' samples.

Unless every batch certainly divides evenly, each element becomes a `Shard` or `MaybeShard`. Its
weight turns the plain mean of the ranks' gradients into the mean over the batch's samples.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Hashable
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.mpi._src.data import input_stats, on_cpu, transformations
from tensorflow.mpi._src.global_batch import samples
from tensorflow.mpi._src.runtime import group


class EvenShard(NamedTuple):
    """This rank's samples of a batch that divides evenly: all weights are 1.

    It marks `data` as a part of a batch, unlike samples that a script passes to train_on_batch.
    The classes of shards differ in structure, because tf.function traces again for another
    structure, but not for another class of the same structure.
    """

    data: Any


class Shard(NamedTuple):
    """An element of a sharded dataset: this rank's samples of one batch, at least one.

    Attributes:
      data: has the structure of the script's batches.
      weight: a float32 scalar, (samples here) * (ranks) / (samples of the batch on all ranks).
      first, whole: float32 tensors of shape [n, 0], which take no memory. In `first`, n is the
        index of this rank's first sample in the batch; in `whole`, the number of samples of the
        batch on all ranks. XLA knows shapes when it compiles, but not the value of a scalar.
    """

    data: Any
    weight: Any
    first: Any
    whole: Any


class MaybeShard(NamedTuple):
    """A Shard whose weight may be 0; then `data` is a stand-in that keeps the ranks in step.

    Nothing computed from a stand-in may count: no gradient, metric, output or moving average.
    `counts`, a boolean scalar, is false for a stand-in.
    """

    data: Any
    weight: Any
    first: Any
    whole: Any
    counts: Any


class WholeBatch(NamedTuple):
    """A batch that every rank has whole; all ranks compute the same."""

    data: Any


def is_shard(element: Any) -> bool:
    return isinstance(element, (EvenShard, Shard, MaybeShard))


def data_of(element: Any) -> Any:
    """The part of an element, or of its spec, that the script's step gets."""
    return element.data if is_shard(element) or isinstance(element, WholeBatch) else element


def first_row(rows: Any, rank: int) -> Any:
    """The index of `rank`'s first sample in a batch of `rows` samples.

    Rank r has (rows + r) // size samples, so a smaller batch gives no rank more. `rows` is a
    number, an array or a tensor.
    """
    # If positive: how many ranks before it have an extra sample.
    extra = rank + rows % group.size - group.size
    return rows // group.size * rank + (extra + abs(extra)) // 2


def own_part(rows: Any) -> tuple[Any, Any]:
    """(index of this rank's first sample, number of its samples) in a batch of `rows` samples.

    As first_row, in few ops, because tf.data optimizes them again for each iterator.
    """
    rest = tf.nn.relu(rows % group.size + (group.rank - group.size))
    return rows // group.size * group.rank + rest, (rows + group.rank) // group.size


class Counted(NamedTuple):
    """This rank's samples of one batch, and their number, an int64 scalar: for a stand-in 0, or
    _ENDED (streams.py)."""

    data: Any
    rows: Any


# Each makes an element for shard_batches from this rank's samples, their number, the number of
# samples of the batch on all ranks, and the index of this rank's first sample in the batch.


def plain(data: Any, mine: Any, rows: Any, first: Any) -> Any:
    """The samples without a weight, even if they are a stand-in."""
    del mine, rows, first
    return data


def even(data: Any, mine: Any, rows: Any, first: Any) -> Any:
    del mine, rows, first
    return EvenShard(data)


def shard(data: Any, mine: Any, rows: Any, first: Any) -> Shard:
    return Shard(data, _weight(mine, rows), empty_of_length(first), empty_of_length(rows))


def maybe_shard(data: Any, mine: Any, rows: Any, first: Any) -> MaybeShard:
    made = shard(data, mine, rows, first)
    return MaybeShard(data, made.weight, made.first, made.whole, made.weight > 0)


_ELEMENTS = {plain, even, shard, maybe_shard}


def element_maker(sizes: Collection[int] | None) -> Callable[[Any, Any, Any, Any], Any]:
    """The function that makes the elements: EvenShards if all weights are 1, Shards if none is 0.

    Args:
      sizes: the possible numbers of samples of a batch; None if unknown.
    """
    if sizes and all(size % group.size == 0 for size in sizes):
        return even
    return shard if sizes and min(sizes) >= group.size else maybe_shard


def part_of(spec: Any, batch: Any) -> tuple[Any, Any, Any, Any]:
    """(this rank's samples of a batch, their number, the number of all samples of the batch, the
    index of this rank's first)."""
    rows = num_rows(spec, batch)
    if not of_one_length(spec):
        rows = _checked_rows(rows, spec, batch)
    first, mine = own_part(rows)
    # A batch that is not empty has a sample at `first`, even if this rank has none.
    data = _slice(spec, batch, first, tf.maximum(first + mine, tf.minimum(first + 1, rows)))
    return data, mine, rows, first


def shard_batches(dataset: Any, element: Callable[[Any, Any, Any, Any], Any]) -> Any:
    """This rank's samples of each of the dataset's batches.

    Args:
      dataset: a tf.data.Dataset of batches, the same on all ranks.
      element: makes an element, as `plain` and the functions after it do. A rank without a sample
        of a batch gets one of another rank as a stand-in.

    Returns:
      A tf.data.Dataset with as many elements. It does not read ahead from `dataset`.
    """
    dataset = count_produced(dataset)
    spec = dataset.element_spec
    key = element if element in _ELEMENTS else None
    return map_on_request(dataset, lambda batch: element(*part_of(spec, batch)), key)


def count_produced(dataset: Any, batches: bool = True) -> Any:
    """`dataset`, whose batches or samples are counted as produced here: see input_stats.py."""
    if not input_stats.on() or input_stats.is_counted(dataset):
        return dataset
    spec = dataset.element_spec

    def count(element: Any) -> Any:
        input_stats.add(made=num_rows(spec, element) if batches else 1)
        return element

    return input_stats.mark_counted(map_on_request(dataset, count, ("made", batches)))


def count_used(dataset: Any, batches: bool, reads_ahead: bool) -> Any:
    """`dataset` for iteration: counts its samples and the time spent waiting for them.

    Args:
      batches: whether elements may be batches; otherwise each counts as one sample.
      reads_ahead: whether tf.data would append a prefetch. This then comes before the measurement,
        so that only the consumer's waits count.
    """
    spec = data_of(dataset.element_spec)
    batches, is_made = batches and is_batched(spec), input_stats.is_counted(dataset)

    def arrived(asked_and_element: Any) -> Any:
        asked, element = asked_and_element
        rows = num_rows(spec, data_of(element)) if batches else tf.constant(1, tf.int64)
        if isinstance(element, MaybeShard):
            rows *= tf.cast(element.counts, tf.int64)
        waited = 1e6 * (tf.timestamp() - asked)
        input_stats.add(made=0 if is_made else rows, used=rows, microseconds=waited)
        input_stats.show_wait(waited)
        return element

    # The parts of a zip are requested one after another, the clock first.
    clock = tf.data.Dataset.from_tensors(0).repeat()
    clock = map_on_request(clock, lambda _: tf.timestamp(), "clock")
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    ahead = dataset.prefetch(tf.data.AUTOTUNE) if reads_ahead else dataset
    timed = tf.data.Dataset.zip((clock, ahead)).with_options(options)
    return map_on_request(timed, arrived, ("used", batches, is_made))


def map_on_request(
    dataset: Any, function: Callable[[Any], Any], key: Hashable | None = None
) -> Any:
    """dataset.map(function) that runs only when the next element is requested.

    tf.data may run a plain map ahead, and then waits for it when the iterator is destroyed; it does
    not do that with a scan. Element types that tf.data's scan does not support leave it as their
    component tensors, and are rebuilt on request.

    Args:
      key: equal for functions that do the same for datasets of one spec; one of them is traced.
    """
    try:
        return _scanned(dataset, lambda state, element: (state, function(element)), key)
    except NotImplementedError:
        pass
    specs: list[Any] = []

    def to_tensors(state: Any, element: Any) -> tuple[Any, Any]:
        found = function(element)
        specs[:] = [tf.nest.map_structure(tf.type_spec_from_value, found)]
        return state, tuple(tf.nest.flatten(found, expand_composites=True))

    def from_tensors(*parts: Any) -> Any:
        return tf.nest.pack_sequence_as(specs[0], parts, expand_composites=True)

    options = tf.data.Options()
    options.experimental_optimization.map_parallelization = False
    return _scanned(dataset, to_tensors).map(from_tensors).with_options(options)


_scans: dict[Hashable, dict[str, Any]] = {}  # the fields of scans with traced functions, by key
_MAX_SCANS = 64


def _scanned(dataset: Any, function: Callable[..., Any], key: Hashable | None = None) -> Any:
    """dataset.scan(0, function), without the leak of stock TensorFlow, which in eager code adds the
    functions of a scan to its default graph for the life of the process."""
    if not tf.executing_eagerly():
        return dataset.scan(tf.constant(0), function)
    spec = dataset.element_spec
    structure = repr(tf.nest.map_structure(lambda leaf: 0, spec))
    scan_key = (key, structure, tuple(tf.nest.flatten(spec)), group.rank, group.size)
    if key is not None and scan_key in _scans:
        return transformations.rebuild_scan(_scans[scan_key], dataset)
    graph = tf.compat.v1.get_default_graph()
    before = set(graph._functions)
    try:
        with on_cpu.functions() if key is not None else contextlib.nullcontext():
            made = dataset.scan(tf.constant(0), function)
    finally:
        for name in set(graph._functions) - before:
            graph._remove_function(name)
    if key is not None:
        if len(_scans) >= _MAX_SCANS:
            _scans.clear()
        _scans[scan_key] = transformations.scan_fields(made)
    return made


def is_batched(spec: Any) -> bool:
    """Whether elements of `spec` have samples along a first dimension."""
    return _first_batched(spec) is not None


def element_of(spec: Any, args: tuple[Any, ...]) -> Any:
    """The element that a function of tf.data received as `args`; only tuples are unpacked."""
    return args if type(spec) is tuple else args[0]


def _weight(mine: Any, rows: Any) -> Any:
    """The weight of a rank with `mine` of `rows` samples; 0 for an empty batch."""
    return tf.math.divide_no_nan(tf.cast(mine * group.size, tf.float32), tf.cast(rows, tf.float32))


def empty_of_length(number: Any) -> Any:
    """A tensor whose shape is its only content: see Shard."""
    return tf.zeros([number, 0])


def static_rows(spec: Any) -> int | None:
    """The static number of samples of a batch of `spec`; None if unknown."""
    leaf = _first_batched(spec)
    return None if leaf is None else _known_rows(leaf)


def differing_rows(spec: Any) -> list[int] | None:
    """The first dimensions of the tensors of a batch if they are known to differ."""
    known = {_known_rows(leaf) for leaf in _leaves(spec) if samples.is_batched(leaf)}
    found = sorted(rows for rows in known if rows is not None)
    return found if len(found) > 1 else None


def of_one_length(spec: Any) -> bool:
    """Whether all first dimensions are statically equal."""
    batched = [leaf for leaf in _leaves(spec) if samples.is_batched(leaf)]
    known = {_known_rows(leaf) for leaf in batched}
    return len(batched) <= 1 or (None not in known and len(known) == 1)


def _checked_rows(rows: Any, spec: Any, batch: Any) -> Any:
    """`rows`, after checking that all tensors of `batch` have this many."""
    parts = zip(_leaves(spec), _leaves(batch))
    lengths = [samples.length(part) for leaf, part in parts if samples.is_batched(leaf)]
    checks = [
        tf.debugging.assert_equal(
            length,
            rows,
            "The tensors of a batch have different first dimensions, so they are not samples that "
            "ranks can share. Set TF_MPI_SHARD=off, with which each rank gets whole batches",
        )
        for length in lengths[1:]
    ]
    with tf.control_dependencies(checks):
        return tf.identity(rows)


def batch_sizes(dataset: Any) -> set[int] | None:
    """The possible numbers of samples of a batch of `dataset`; None if unknown.

    Derived from the shapes, or from a batch() that no later transformation changes.
    """
    rows = static_rows(dataset.element_spec)
    if rows is not None:
        return {rows}
    dataset = transformations.origin(dataset)
    if not transformations.is_plain_batch(dataset):
        return None
    size = tf.get_static_value(dataset._batch_size)
    total = length(dataset._input_dataset)
    if size is None or total is None:
        return None
    if total == math.inf:
        return {int(size)}
    sizes = {int(size)} if total >= size else set()
    return sizes | {int(total % size)} if total % size else sizes


def length(dataset: Any) -> float | None:
    """The number of elements, possibly infinite; None if unknown, as in a graph."""
    cardinality = tf.get_static_value(dataset.cardinality())
    if cardinality is None or cardinality == tf.data.UNKNOWN_CARDINALITY:
        return None
    return math.inf if cardinality == tf.data.INFINITE_CARDINALITY else int(cardinality)


def num_rows(spec: Any, element: Any) -> Any:
    """The number of samples in a batch: an int64 scalar tensor."""
    pairs = zip(_leaves(spec), _leaves(element))
    return samples.length(next(part for leaf, part in pairs if samples.is_batched(leaf)))


def _leaves(structure: Any) -> list[Any]:
    return list(tf.nest.flatten(structure))


def _first_batched(spec: Any) -> Any:
    return next((leaf for leaf in _leaves(spec) if samples.is_batched(leaf)), None)


def type_without_samples(spec: Any) -> str | None:
    """The name of a type in `spec` that does not define its samples; None if there is none."""
    from tensorflow.python.data.util import structure

    known = (tf.RaggedTensor, tf.SparseTensor, tf.experimental.Optional, structure.NoneTensor)
    for leaf in _leaves(spec):
        kind = getattr(leaf, "value_type", type(None))
        if issubclass(kind, tf.__internal__.CompositeTensor) and not issubclass(kind, known):
            if not samples.is_batched(leaf):
                return str(kind.__name__)
    return None


def _known_rows(leaf: Any) -> int | None:
    """The static first dimension of a spec; None if unknown."""
    if not isinstance(leaf, (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec)):
        leaf = leaf._flat_tensor_specs[0]
    return leaf.shape[0] if leaf.shape.rank else None


def _slice(spec: Any, element: Any, first: Any, end: Any) -> Any:
    """The samples of `element` from `first` up to `end`, int64 scalars.

    Leaves without samples (scalars, absent inputs) are unchanged, as are those whose static length
    differs from that of the first leaf with samples.
    """
    rows = static_rows(spec)

    def take(leaf: Any, part: Any) -> Any:
        if not samples.is_batched(leaf):
            return part
        if _known_rows(leaf) is not None and rows not in (None, _known_rows(leaf)):
            return part
        if isinstance(part, tf.SparseTensor):
            others = part.dense_shape[1:]
            shape = tf.concat([[end - first], others], 0)
            mine = tf.sparse.slice(part, tf.concat([[first], tf.zeros_like(others)], 0), shape)
            return tf.SparseTensor(mine.indices, mine.values, shape)  # the op infers no shape
        if isinstance(part, (tf.Tensor, tf.RaggedTensor)):
            return part[first:end]
        tensors = [tensor[first:end] for tensor in samples.encoded(part)]
        mine = leaf._unbatch()._batch(tensors[0].shape[0])
        return mine._from_compatible_tensor_list(tensors)

    return tf.nest.map_structure(take, spec, element)
