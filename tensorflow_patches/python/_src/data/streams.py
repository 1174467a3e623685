"""Streams of batches over all ranks: rank 0's for all, or each rank's own, in lockstep.

- If the ranks' pipelines would give different batches (unseeded shuffles, random augmentation,
  Python generators), all ranks get those of rank 0's dataset. Other ranks iterate their own only
  if that may have side effects, as in a generator.
- If each rank has its own batches (the script divides the data, or each rank takes whole batches),
  the ranks exchange their numbers of samples before each batch.

An exchange takes place when its batch is requested; only its input is read ahead.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.mpi import config
from tensorflow.mpi._src.data import (
    batch_shard,
    determinism,
    failures,
    input_stats,
    iterations,
    own_data,
    packing,
    transformations,
)
from tensorflow.mpi._src.messaging import control_plane, graph_collectives
from tensorflow.mpi._src.runtime import group, log

_ENDED = -1  # in place of a number of samples
_AHEAD = 2  # elements
_RANK_0_ENDED = "rank 0, which sends these data, ended before it had sent all of them"


class Stream(NamedTuple):
    """The batches of a rank; after `same_everywhere` they are the same on all ranks.

    Attributes:
      length: "endless", a number of batches, or None if unknown.
      sizes: the possible numbers of samples of a batch, sorted; None if unknown.
      exchanged: whether the ranks exchange them (rank 0's, or each rank's in turn), so that all
        ranks must request each of them.
      has_effects: whether making them has side effects, as in a generator; then only one batch is
        read ahead.
    """

    dataset: Any
    length: Any
    sizes: list[int] | None
    exchanged: bool = False
    has_effects: bool = False


class Header(NamedTuple):
    """A rank's description of its stream, for the other ranks.

    Attributes:
      length, sizes: see Stream.
      description: of the pipeline, or of its arrays; None if its elements may differ by rank.
      spec: of the elements, encoded.
      full_caches: for each cache of the pipeline, whether it contains a whole pass.
    """

    length: Any
    sizes: list[int] | None
    description: list[Any] | None
    spec: str
    full_caches: list[bool]


class Comparison(NamedTuple):
    """A comparison of the ranks' streams.

    Attributes:
      headers: by rank.
      same: whether they are known to have the same elements in the same order.
      differ: whether they are known to have different elements.
    """

    headers: list[Header]
    same: bool
    differ: bool


def compare(stream: Stream, label: str, arrays: bool = False) -> Comparison:
    """Compares the ranks' streams, and agrees on the passes of their caches (iterations.fix_pass).
    Collective. Arguments as for same_everywhere."""
    dataset = stream.dataset
    description = determinism.digests(dataset) if arrays else determinism.description(dataset)
    spec = packing.encode_spec(dataset.element_spec)
    caches = [source for source in determinism.sources(dataset) if transformations.is_cache(source)]
    full = [iterations.holds_a_pass(cache) for cache in caches]
    own = Header(stream.length, stream.sizes, description, spec, full)
    headers = [Header(*fields) for fields in control_plane.headers(label, [*own])]
    for i, cache in enumerate(caches):  # reading ahead may have completed it on one rank only
        is_full = any(header.full_caches[i : i + 1] == [True] for header in headers)
        iterations.fix_pass(cache, is_full)
    descriptions = [header.description for header in headers]
    same = description is not None and all(one == description for one in descriptions)
    return Comparison(headers, same, not same and None not in descriptions)


def same_everywhere(stream: Stream, label: str, what: str, arrays: bool = False) -> Stream:
    """Makes one stream for all ranks from the ranks' streams. Collective.

    Args:
      label: the name of the exchange.
      what: the name of the data in messages.
      arrays: whether it is made from arrays, in an order that is the same on all ranks.

    Raises:
      ValueError: the ranks have arrays, or equal pipelines, but different amounts of data.
    """
    headers, same, differ = compare(stream, label, arrays)
    amounts = [(header.length, header.sizes) for header in headers]
    if same or arrays:
        _check_amounts(what, amounts)
    if same:
        return stream
    if differ:
        _warn_of_different_data(what, "arrays" if arrays else "data")
    else:
        _warn_of_ordered_draws(what, stream.dataset)
    length, sizes = amounts[0]
    dataset = _from_rank_0(stream.dataset, label, what, headers[0].spec)
    # As in one process, feeds.py reads only one batch ahead from a generator: code that continues
    # the generator later misses what was read ahead.
    has_effects = stream.has_effects or determinism.has_effects(stream.dataset)
    return Stream(dataset, length, sizes, exchanged=True, has_effects=has_effects)


def _warn_of_different_data(what: str, kind: str) -> None:
    """Reports data that differ: either random without a seed, or each rank's own part."""
    log.once(
        f"{what}: the ranks have different {kind}. All of them train and evaluate on rank "
        f"0's, and each predicts its own. {own_data.WAY_OUT}. If the data are random, set a seed: "
        "then nothing has to be sent",
        key="other data",
    )


def _warn_of_ordered_draws(what: str, dataset: Any) -> None:
    """Reports a sequential random map, and what num_parallel_calls would gain."""
    name = drawing_map(dataset)
    if name is not None:
        log.once(
            f"{what}: map '{name}' draws random numbers sample by sample, so rank 0's samples, "
            "with one process's numbers, are sent to all ranks. With num_parallel_calls="
            "tf.data.AUTOTUNE in that map, each rank draws for its own samples; unless you set a "
            "seed, the numbers then differ from run to run",
            key="draws in order",
        )


def drawing_map(dataset: Any) -> str | None:
    """The name of the map whose draws, and not Python code, make rank 0 send samples, if any."""
    made_by_python = determinism.is_made_by_python(dataset)
    return None if made_by_python else determinism.draws_in_order(dataset)


def _check_amounts(what: str, amounts: list[Any]) -> None:
    """Raises ValueError if amounts differ, before a rank waits for missing batches."""
    for rank, theirs in enumerate(amounts):
        if theirs != amounts[0]:
            raise ValueError(
                f"{what}: rank 0 has {_amount(amounts[0])}, rank {rank} has {_amount(theirs)}. "
                "Give all ranks the same data; each then takes its part. "
                f"{own_data.WAY_OUT}"
            )


def _amount(amount: Any) -> str:
    length, sizes = amount
    number = "an unknown number of" if length is None else str(length)
    of_sizes = f" of {' or '.join(map(str, sizes))} samples" if sizes else ""
    return f"{number} batches{of_sizes}"


def _from_rank_0(dataset: Any, label: str, what: str, spec_of_rank_0: str) -> Any:
    """Rank 0's elements, on all ranks.

    If functions with side effects make them, every rank runs its own functions equally often, so
    that the script's side effects occur on all ranks.
    """
    spec = packing.decode_spec(spec_of_rank_0, dataset.element_spec)
    to_send = tf.data.Dataset.from_tensors(tf.constant([packing.END], tf.uint8)).repeat()
    input_stats.mark_counted(to_send)
    has_effects = determinism.has_effects(dataset)
    iterates_own = group.rank == 0 or has_effects
    if iterates_own:
        mine = _packed(
            batch_shard.count_produced(dataset, batch_shard.is_batched(spec)), has_effects
        )
        to_send = mine.concatenate(to_send)

    exchanges = failures.Exchanges(label)

    def received(element: Any) -> Any:
        found = of_rank_0(*element)
        if has_effects:
            with tf.control_dependencies([found]):
                tf.numpy_function(exchanges.got, [], [])
        return found

    def of_rank_0(name: Any, packed: Any) -> Any:
        if group.rank == 0:
            return gather(packed, name)
        from_rank_0 = gather(packed[:0], name)
        not_ended = tf.debugging.assert_greater(tf.size(from_rank_0), 0, f"{what}: {_RANK_0_ENDED}")
        with tf.control_dependencies([not_ended]):
            from_rank_0 = tf.identity(from_rank_0)
        if iterates_own:
            noted = tf.numpy_function(_note_other_elements(what), [packed, from_rank_0], tf.bool)
            with tf.control_dependencies([noted]):
                return tf.identity(from_rank_0)
        return from_rank_0

    elements = exchanges.with_names(to_send, np.uint8, ends_with_error=has_effects)
    elements = batch_shard.map_on_request(elements, received)
    elements = elements.take_while(lambda packed: packed[0] != packing.END)
    return batch_shard.map_on_request(elements, lambda packed: packing.unpack(spec, packed))


def _packed(dataset: Any, has_effects: bool) -> Any:
    """The elements as vectors of bytes; read ahead here, unless making them has side effects."""
    spec = dataset.element_spec
    if has_effects:
        return batch_shard.map_on_request(dataset, packing.pack)
    packed = dataset.map(lambda *args: packing.pack(batch_shard.element_of(spec, args)))
    return packed.prefetch(_AHEAD)


def _note_other_elements(what: str) -> Any:
    """A function that compares a packed element with rank 0's, and reports a difference."""

    def note(mine: Any, rank_0s: Any) -> bool:
        same = np.array_equal(mine, rank_0s)
        if not same and rank_0s.size:
            log.once(
                f"{what}: this rank's Python code yields different data than rank 0's. All ranks "
                "use rank 0's data, so values that the script records while it yields do not match "
                "them. Seed its random numbers, or draw from random or numpy on the thread that "
                "calls fit",
                key="other elements",
                every_rank=True,
            )
        return same

    return note


def agree(dataset: Any, label: str) -> Any:
    """Each rank's own batches, weighted by the ranks' numbers of samples.

    Args:
      dataset: batch_shard.Counted elements, with the same structure on all ranks.
      label: the name of the exchanges.

    Returns:
      A tf.data.Dataset of batch_shard.MaybeShard elements, the same number on all ranks: it ends
      with the longest dataset; a rank whose dataset has ended gets stand-ins of weight 0.
    """
    spec = dataset.element_spec
    end = batch_shard.Counted(stand_in(spec.data), tf.constant(_ENDED, tf.int64))
    endless = dataset.concatenate(tf.data.Dataset.from_tensors(end).repeat())

    def exchange(element: Any) -> tuple[Any, Any]:
        name, counted = element
        by_rank = tf.ensure_shape(gather(counted.rows[None], name), [group.size])
        rows = tf.maximum(by_rank, 0)
        whole, own = tf.reduce_sum(rows), batch_shard.num_rows(spec.data, counted.data)
        # For a stand-in, too, `first` is the index of a sample.
        first = tf.minimum(tf.reduce_sum(rows[: group.rank]), whole - own)
        shard = batch_shard.maybe_shard(counted.data, rows[group.rank], whole, tf.maximum(first, 0))
        if config.get("TF_MPI_SHARD") == "off":
            # No step uses `first` and `whole` then, and XLA would compile a step for each
            # combination of the ranks' sizes.
            shard = shard._replace(
                first=batch_shard.empty_of_length(0), whole=batch_shard.empty_of_length(own)
            )
        return tf.reduce_any(by_rank > _ENDED), shard

    exchanged = batch_shard.map_on_request(named(endless, label, np.int64), exchange)
    exchanged = exchanged.take_while(lambda any_left, shard: any_left)
    return batch_shard.map_on_request(exchanged, lambda element: element[1])


def count(dataset: Any) -> Any:
    """The batches of `dataset` as batch_shard.Counted elements."""
    spec = dataset.element_spec
    return batch_shard.map_on_request(
        dataset, lambda batch: batch_shard.Counted(batch, batch_shard.num_rows(spec, batch))
    )


def as_even(dataset: Any) -> Any:
    """Batches of the same size on all ranks, as batch_shard.EvenShard elements."""
    return batch_shard.map_on_request(dataset, batch_shard.EvenShard)


def as_whole(dataset: Any) -> Any:
    """Batches that every rank has whole, as batch_shard.WholeBatch elements."""
    return batch_shard.map_on_request(dataset, batch_shard.WholeBatch)


def in_turn(stream: Stream) -> Any:
    """This rank's batches of a stream that is the same on all ranks: batch i is rank i % size's."""
    if not stream.exchanged:
        return batch_shard.count_produced(stream.dataset).shard(group.size, group.rank)
    # All ranks must request all batches of a turn before any of them trains on its own.
    return every_nth(stream.dataset, drop_remainder=False)


def every_nth(dataset: Any, drop_remainder: bool) -> Any:
    """This rank's elements: element i is rank i % size's. Ranks request `size` elements at once."""
    spec = dataset.element_spec

    def mine(*window: Any) -> Any:
        turn = tf.data.Dataset.zip(batch_shard.element_of(spec, window))
        return turn.skip(group.rank).take(1)

    return dataset.window(group.size, drop_remainder=drop_remainder).flat_map(mine)


def named(dataset: Any, label: str, dtype: Any = np.uint8) -> Any:
    """(name of the allgather of `dtype`s for an element, element): see failures.Exchanges."""
    return failures.Exchanges(label).with_names(dataset, dtype)


def gather(vector: Any, name: Any) -> Any:
    """The vectors of all ranks, concatenated; raises the error of a rank that has failed."""
    return failures.raise_if_failed(graph_collectives.gather_data(vector, name))


def fill_epochs(dataset: Any, num_batches: int, steps: int) -> Any:
    """Fills each epoch of `num_batches` Counted elements with stand-ins, so that it has `steps`."""
    spec = dataset.element_spec
    missing = steps - num_batches

    def fill(number: Any, element: Any) -> Any:
        at_end = tf.math.floormod(number + 1, num_batches) == 0
        nothing = batch_shard.Counted(stand_in(spec.data), tf.constant(0, tf.int64))
        filling = tf.data.Dataset.from_tensors(nothing).repeat(missing)
        return tf.data.Dataset.from_tensors(element).concatenate(
            filling.take(tf.where(at_end, tf.constant(missing, tf.int64), 0))
        )

    return dataset if missing == 0 else dataset.enumerate().flat_map(fill)


def stand_in(spec: Any) -> Any:
    """A batch of `spec` without content: zeros, with one sample if the shape allows it."""
    return tf.nest.map_structure(_stand_in, spec)


def _stand_in(spec: Any) -> Any:
    if isinstance(spec, tf.OptionalSpec):
        return tf.experimental.Optional.empty(spec._element_spec)
    if not hasattr(spec, "dtype"):  # an extension type, made of such tensors
        return spec._from_components(stand_in(spec._component_specs))
    shape = [1 if size is None else size for size in spec.shape]
    if isinstance(spec, tf.RaggedTensorSpec):
        return _ragged_stand_in(spec, shape)
    if isinstance(spec, tf.SparseTensorSpec):
        nowhere = tf.zeros([0, len(shape)], tf.int64)
        return tf.SparseTensor(nowhere, tf.zeros([0], spec.dtype), shape)
    return tf.zeros(shape, spec.dtype)


def _ragged_stand_in(spec: Any, shape: list[int]) -> Any:
    """A ragged tensor of empty rows: as many as the spec requires, or one."""
    values = tf.zeros([0, *shape[spec.ragged_rank + 1 :]], spec.dtype)
    inner = [tf.zeros([1], spec.row_splits_dtype)] * (spec.ragged_rank - 1)
    outer = tf.zeros([shape[0] + 1], spec.row_splits_dtype)
    return tf.RaggedTensor.from_nested_row_splits(values, [outer, *inner])
