"""Selects a rank's samples of a batch before the pipeline works on them.

A rank takes its part of each batch (batch_shard.py), so it needs to decode, resize or parse only
those samples. The pipeline is rebuilt from the script's Dataset objects: from its end back to where
elements are batched, and from there back over maps of pure functions and over transformations that
do not look at elements, such as shuffle and repeat. The rebuilt pipeline first selects this rank's
undecoded elements of each batch, and then applies these maps to them. Each rank gets the same
samples as without the selection. See docs/decisions/076-selection.md.

    source > shuffle > map decode > batch 64 > prefetch     becomes, on each of two ranks,
    source > shuffle > [32 of each 64] > map decode > batch 32 > prefetch

Elements below are (tag, data). The tag, an int64, is the number of samples of the batch on all
ranks; for a batch it is a vector with one such number per row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.mpi._src.data import (
    batch_shard,
    contents,
    determinism,
    iterations,
    row_wise,
    streams,
    transformations,
)
from tensorflow.mpi._src.runtime import group, log

_MAX_COPIED = 1 << 18  # bytes of an element; copying more takes longer than a variant
# What scripts call, by the names of classes that several functions use.
_IN_SCRIPTS = {
    "dense_to_ragged": "ragged_batch()",
    "directed_interleave": "sample_from_datasets() or choose_from_datasets()",
    "group_by_window": "group_by_window() or bucket_by_sequence_length()",
}


class Step(NamedTuple):
    """A map, or a prefetch that follows one, that is delayed until after the selection.

    Attributes:
      dataset: the script's dataset; the rebuilt one has its parameters (parallelism, buffer size).
      function: maps an element; None for a prefetch.
      path: the part of an element that it maps: for each enclosing zip, the zipped structure and
        the index in it.
      divided: the script's transformations whose work this step divides among the ranks.
    """

    dataset: Any
    function: Callable[[Any], Any] | None
    path: tuple[tuple[Any, int], ...] = ()
    divided: tuple[Any, ...] = ()


class Delayed(NamedTuple):
    """A dataset and the delayed steps for its elements, in order."""

    dataset: Any
    steps: tuple[Step, ...] = ()


class Wall(NamedTuple):
    """A transformation that needs all samples, so that every rank does all the work before it.

    Attributes:
      why: the reason, for users; None if _described knows one, or if there is no work before it.
    """

    dataset: Any
    why: str | None = None


class Found(NamedTuple):
    """The walls that were found, and the transformations whose work is divided among the ranks."""

    walls: list[Wall]
    divided: list[Any]


def shard_batches(stream: streams.Stream, element: Callable[[Any, Any, Any, Any], Any]) -> Any:
    """As batch_shard.shard_batches, but avoids work for other ranks' samples."""
    found = Found([], [])
    selected = None
    if not stream.exchanged:
        selected = _selected(stream.dataset, found)
        _report_walls(stream.dataset, found)
    if selected is None:
        return batch_shard.shard_batches(stream.dataset, element)

    def finished(tagged: Any) -> Any:
        tags, data = tagged
        total = tf.reduce_sum(tags[:1])  # 0 for an empty batch
        first, mine = batch_shard.own_part(total)
        return element(data, mine, total, first)

    return batch_shard.map_on_request(selected, finished, ("own rows", element))


def every_nth(dataset: Any, batches: bool) -> Any:
    """dataset.shard(size, rank), with the maps at its end applied to this rank's elements only.

    Args:
      batches: whether the elements are batches, whose samples are counted.
    """
    delayed = _delayed(dataset, Found([], []))
    if not delayed.steps:
        return batch_shard.count_produced(dataset, batches).shard(group.size, group.rank)
    mine = delayed.dataset.shard(group.size, group.rank)
    # Steps take tagged elements; the tag is unused here.
    tagged = mine.map(lambda *args: (0, batch_shard.element_of(mine.element_spec, args)))
    applied = _applied(tagged, delayed.steps)
    return applied.map(lambda tag, data: data)


# From the end of the pipeline back to where its batches are made.


def _selected(dataset: Any, found: Found) -> Any:
    """(tags, this rank's rows) of a dataset of batches; None if nothing is gained."""
    if transformations.is_batch(dataset):
        return _selected_batches(dataset, found)
    if transformations.keeps_elements(dataset):
        source = _selected(dataset._input_dataset, found)
        if source is None:
            return None
        found.divided.append(dataset)
        return transformations.rebuild(dataset, source)
    if transformations.is_cache(dataset):
        rows = _replacement_of(dataset, found, _cached_rows)
        if rows is not None:
            found.divided.append(dataset)
        return rows
    if transformations.is_zip(dataset):
        return _selected_zip(dataset, found)
    if not transformations.is_map(dataset):
        found.walls.append(Wall(dataset))
        return None
    function = row_wise.function(dataset)
    if isinstance(function, str):
        found.walls.append(Wall(dataset, function))
        return None
    source = dataset._input_dataset
    own = _selected(source, found)
    if own is None and row_wise.has_one_length(source):
        own = _own_rows(source)
    if own is None:
        found.walls.append(Wall(source, "may yield tensors with different numbers of rows"))
        return None
    found.divided.append(dataset)
    return _mapped(own, Step(dataset, _traced(function)))


def _selected_zip(dataset: Any, found: Found) -> Any:
    """As _selected for a zip of datasets with equal batches, such as images and masks."""
    from tensorflow.python.data.util import nest

    sizes = set(map(transformations.size_of_batches, dataset._inputs()))
    if len(sizes) > 1 or None in sizes:
        found.walls.append(Wall(dataset))
        return None
    parts = [_selected(part, found) for part in dataset._inputs()]
    if all(part is None for part in parts):
        return None
    for i, source in enumerate(dataset._inputs()):
        if parts[i] is None:
            if not transformations.elements_are_batches(source):
                return None
            parts[i] = _own_rows(source)
    found.divided.append(dataset)
    zipped = tf.data.Dataset.zip(nest.pack_sequence_as(dataset._datasets, parts))

    def rezip(*args: Any) -> Any:
        element = batch_shard.element_of(zipped.element_spec, args)
        pairs = nest.flatten_up_to(dataset._datasets, element)
        return pairs[0][0], nest.pack_sequence_as(dataset._datasets, [data for _, data in pairs])

    return zipped.map(rezip)


def _own_rows(dataset: Any) -> Any:
    """(tags, this rank's rows) of a dataset whose batches every rank makes whole."""
    spec = dataset.element_spec
    return batch_shard.shard_batches(
        dataset, lambda data, mine, total, first: (_tags(spec, data, total), data)
    )


def _tags(spec: Any, data: Any, total: Any) -> Any:
    return tf.fill([batch_shard.num_rows(spec, data)], total)


def _selected_batches(dataset: Any, found: Found) -> Any:
    """As _selected for a transformation that makes batches."""
    parameters = transformations.batch_size(dataset)
    delayed = _delayed(dataset._input_dataset, found)
    if parameters is None or not delayed.steps:
        return None
    size, drops = parameters
    found.divided.extend([*(one for step in delayed.steps for one in step.divided), dataset])
    own = _applied(_own_elements(delayed.dataset, size, drops), delayed.steps)
    own_size = (size + group.rank) // group.size  # see batch_shard.first_row
    batches = transformations.rebuild_batch(dataset, own, max(own_size, 1))  # 1: a stand-in
    length = batch_shard.length(dataset)
    if length is None:
        return batches
    known = tf.data.INFINITE_CARDINALITY if length == math.inf else length
    return batches.apply(tf.data.experimental.assert_cardinality(known))


def _own_elements(dataset: Any, size: int, drops: bool) -> Any:
    """(tag, element) for this rank's elements of each `size` consecutive ones.

    batch() needs elements of one shape, and copies them. Elements of other shapes, and large ones,
    such as a whole series of which a map takes a window, are held as variants and unpacked later.
    """
    from tensorflow.python.data.ops import optional_ops

    spec = dataset.element_spec
    copied = _is_small(spec)

    def held(*args: Any) -> Any:
        element = batch_shard.element_of(spec, args)
        return tf.experimental.Optional.from_value(element)._variant_tensor

    batches = (dataset if copied else dataset.map(held)).batch(size, drops)

    def part(*args: Any) -> Any:
        batch = batch_shard.element_of(batches.element_spec, args)
        data, _, total, _ = batch_shard.part_of(batches.element_spec, batch)
        return _tags(batches.element_spec, data, total), data

    own = batches.map(part).unbatch()
    if copied:
        return own
    return own.map(
        lambda tag, variant: (tag, optional_ops._OptionalImpl(variant, spec).get_value())
    )


def _is_small(spec: Any) -> bool:
    """Whether elements have one shape and at most _MAX_COPIED bytes (strings not counted)."""
    size = 0
    for leaf in tf.nest.flatten(spec):
        if not isinstance(leaf, tf.TensorSpec) or not leaf.shape.is_fully_defined():
            return False
        size += leaf.shape.num_elements() * leaf.dtype.size
    return size <= _MAX_COPIED


# From where batches are made back to a transformation that depends on the mapped elements.


def _delayed(dataset: Any, found: Found) -> Delayed:
    """The dataset before the maps at the end of this one, and these maps as steps."""
    if transformations.is_map(dataset):
        why = determinism.why_not_delayed(dataset._map_func)
        if why is None:
            source, steps = _delayed(dataset._input_dataset, found)
            step = Step(dataset, _traced(dataset._map_func), divided=(dataset,))
            return Delayed(source, (*steps, step))
        found.walls.append(Wall(dataset, why))
        return Delayed(dataset)
    if transformations.is_cache(dataset):
        return _delayed_cache(dataset, found)
    if transformations.is_zip(dataset):
        return _delayed_zip(dataset, found)
    if not transformations.keeps_elements(dataset):
        found.walls.append(Wall(dataset))
        return Delayed(dataset)
    source, steps = _delayed(dataset._input_dataset, found)
    if not steps:
        return Delayed(dataset)
    if transformations.is_prefetch(dataset):
        return Delayed(source, (*steps, Step(dataset, None, divided=(dataset,))))
    return Delayed(transformations.rebuild(dataset, source), steps)


def _delayed_zip(dataset: Any, found: Found) -> Delayed:
    from tensorflow.python.data.util import nest

    parts = [_delayed(part, found) for part in dataset._inputs()]
    steps = tuple(
        step._replace(path=((dataset._datasets, i), *step.path))
        for i, part in enumerate(parts)
        for step in part.steps
    )
    if not steps:
        return Delayed(dataset)
    sources = nest.pack_sequence_as(dataset._datasets, [part.dataset for part in parts])
    return Delayed(tf.data.Dataset.zip(sources, name=dataset._name), steps)


# Caches in memory. A rank's replacement of a cache lives as long as the script's cache.


def _replacement_of(cache: Any, found: Found, make: Callable[[Any, Found], Any]) -> Any:
    """The cache's replacement, made once by `make`, so that it is the same in each call of fit."""
    parts = vars(cache).setdefault("_tf_mpi_parts", {})
    key = make, group.rank, group.size
    if key not in parts:
        own = Found([], [])
        parts[key] = make(cache, own), own
    made, own = parts[key]
    found.walls.extend(own.walls)
    found.divided.extend(own.divided)
    return made


def _cached_rows(cache: Any, found: Found) -> Any:
    """A cache of this rank's rows of batches: the same rows in each epoch."""

    def copied(*args: Any) -> Any:
        return tf.nest.map_structure(
            lambda tensor: tf.raw_ops.DeepCopy(x=tensor), args, expand_composites=True
        )

    if iterations.is_complete(cache):  # the script has iterated it
        return None
    source = cache._input_dataset
    rows = _selected(source, found)
    if rows is None:
        if not batch_shard.is_batched(source.element_spec) or not row_wise.has_one_length(source):
            return None
        rows = _own_rows(source).map(copied)  # a slice would keep the whole batch in memory
    return transformations.rebuild_cache(cache, rows)


def _delayed_cache(cache: Any, found: Found) -> Delayed:
    """The undecoded samples with indices, and a step that keeps what it has decoded in a table.

    A rank's rows cannot be cached, because a shuffle after the cache gives it others in each epoch.
    """
    delayed = _replacement_of(cache, found, _numbered)
    if delayed is None:
        return Delayed(cache)
    steps = tuple(step._replace(divided=(*step.divided, cache)) for step in delayed.steps)
    return Delayed(delayed.dataset, steps)


def _numbered(cache: Any, found: Found) -> Delayed | None:
    """The cache's source with indices, and the step that decodes; None if nothing is gained."""
    if iterations.is_complete(cache):  # the script has iterated it
        return None
    source, steps = _delayed(cache._input_dataset, found)
    maps = [step for step in steps if step.function is not None]
    if not maps:
        return None
    if not transformations.is_of_tensors(source):  # slicing tensors again is cheaper
        source = transformations.rebuild_cache(cache, source)
    in_parallel = [step for step in maps if hasattr(step.dataset, "_num_parallel_calls")]
    divided = tuple(one for step in steps for one in step.divided)
    like = (in_parallel or maps)[-1].dataset
    step = Step(like, _memoized(maps, cache.element_spec), divided=divided)
    options = tf.data.Options()  # a saved iterator omits the table, which can be filled again
    options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    return Delayed(source.enumerate().with_options(options), (step,))


def _memoized(steps: list[Step], spec: Any) -> Callable[[Any], Any]:
    """Maps (index, element) to the element after `steps`, computed once in this process.

    Two concurrent calls may both compute it. The table holds elements as variants, without copies.
    """
    from tensorflow.python.data.ops import optional_ops

    nothing = tf.experimental.Optional.empty(spec)._variant_tensor
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.variant, nothing)

    def get(numbered: Any) -> Any:
        number, element = numbered
        found = table.lookup(number)

        def make() -> Any:
            made = element
            for step in steps:
                made = _apply_step(step, made)
            held = tf.experimental.Optional.from_value(made)._variant_tensor
            with tf.control_dependencies([table.insert(number, held)]):
                return tf.identity(held)

        is_stored = optional_ops._OptionalImpl(found, spec).has_value()
        held = tf.cond(is_stored, lambda: tf.identity(found), make)
        return optional_ops._OptionalImpl(held, spec).get_value()

    return get


# Delayed steps, applied to tagged elements.


def _applied(tagged: Any, steps: tuple[Step, ...]) -> Any:
    for step in steps:
        if step.function is None:
            tagged = transformations.rebuild(step.dataset, tagged)
        else:
            tagged = _mapped(tagged, step)
    return tagged


def _traced(wrapped: Any) -> Callable[[Any], Any]:
    """The traced function of a map, so that the script's Python does not run again."""
    from tensorflow.python.data.util import structure

    def run(element: Any) -> Any:
        tensors = structure.to_tensor_list(wrapped._input_structure, element)
        return structure.from_compatible_tensor_list(
            wrapped.output_structure, wrapped.function(*tensors)
        )

    return run


def _apply_step(step: Step, element: Any) -> Any:
    """`element` with its part replaced by the result of `step`."""
    from tensorflow.python.data.util import nest

    if not step.path:
        assert step.function is not None
        return step.function(element)
    (zipped, i), *others = step.path
    parts = nest.flatten_up_to(zipped, element)
    parts[i] = _apply_step(step._replace(path=tuple(others)), parts[i])
    return nest.pack_sequence_as(zipped, parts)


def _mapped(tagged: Any, step: Step) -> Any:
    @tf.autograph.experimental.do_not_convert
    def function(tags: Any, element: Any) -> Any:
        made = _apply_step(step, element)
        if tags.shape.rank:  # a batch with the same number of rows
            for leaf in tf.nest.flatten(made):
                if leaf.shape.rank and tags.shape[0] is not None:
                    leaf.set_shape([tags.shape[0], *leaf.shape[1:]])
        return tags, made

    function._tf_mpi_own = True  # see keyed_maps.py
    return transformations.rebuild_map(step.dataset, tagged, function)


def _report_walls(dataset: Any, found: Found) -> None:
    """Rank 0 names the transformations that make every rank do the work before them."""
    if group.rank == 0:
        divided = {id(one) for one in found.divided}
        log.debug(f"plan: input pipeline: {_plan(dataset, divided)}", once=True)
    for wall in found.walls:
        work = mapping_functions(wall.dataset)
        if work and not transformations.is_filled_file(wall.dataset):
            what, why, remedy = _described(wall)
            log.once(
                f"input pipeline: {what} {why}, so every rank does all the work before it "
                f"({', '.join(work[:3])}); only what follows is divided among the ranks. To "
                f"divide more, {remedy}",
                key=f"wall {what}",
            )


def mapping_functions(dataset: Any) -> list[str]:
    """The names of the script's functions that map the elements of `dataset`, for users."""
    return [name for name in map(_function_name, determinism.sources(dataset)) if name]


def _plan(dataset: Any, divided: set[int]) -> str:
    """The pipeline from its source: "range > shuffle > map 'decode' (own rows) > batch"."""
    sources = [_plan(source, divided) for source in dataset._inputs()]
    before = sources[0] if len(sources) == 1 else f"({', '.join(sources)})" if sources else ""
    mapped = _function_name(dataset) if transformations.is_map(dataset) else None
    name = " ".join(filter(None, [transformations.name(dataset), mapped]))
    text = f"{name} (own rows)" if id(dataset) in divided else name
    return f"{before} > {text}" if before else text


def _described(wall: Wall) -> tuple[str, str, str]:
    """(the transformation, why it is a wall, what the script may do instead), for users."""
    remedy = "map single samples, before batch() and after filters"
    if transformations.is_map(wall.dataset):
        name = _function_name(wall.dataset) or "of TensorFlow"
        return f"map {name}", str(wall.why), remedy
    name = transformations.name(wall.dataset)
    if name == "padded_batch":
        why = "pads to the longest sample of a batch"
        return "padded_batch()", why, "pad to a fixed size, by padded_shapes"
    if name == "cache":
        why = (
            "is filled with all samples, by each rank into its own file, of which rank 0's is kept"
        )
        return "cache(file)", why, "use cache(), which holds samples in memory"
    return _IN_SCRIPTS.get(name, f"{name}()"), "needs every sample before it", remedy


def _function_name(dataset: Any) -> str | None:
    """The name of the script's function that maps; None if there is none."""
    for wrapped in dataset._functions():
        function = wrapped._func
        name = f"'{getattr(function, '__name__', 'a function')}'"
        if str(getattr(function, "__module__", "")).startswith("tensorflow."):
            continue
        if transformations.is_map(dataset):
            return name
        ops = contents.node_ops(wrapped.function.graph.as_graph_def())
        if any("MapDataset" in op for op in ops):
            return f"a map in function {name}"
    return None
