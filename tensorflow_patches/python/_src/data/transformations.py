"""TensorFlow's dataset classes, of TensorFlow 2.16 to 2.22.

No other module tests for these classes or constructs them, except _VariantDataset (iterations.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.data import iterations

_PACKAGE = "tensorflow.python.data."
_OPS, _EXPERIMENTAL = f"{_PACKAGE}ops.", f"{_PACKAGE}experimental.ops."
_BATCH = {f"{_OPS}batch_op": ("_BatchDataset", "_ParallelBatchDataset")}
_PADDED_BATCH = {f"{_OPS}padded_batch_op": ("_PaddedBatchDataset",)}
_MAKE_BATCHES = {
    **_BATCH,
    **_PADDED_BATCH,
    f"{_OPS}rebatch_op": ("_RebatchDataset",),
    f"{_OPS}sparse_batch_op": ("_DenseToSparseBatchDataset",),
    f"{_EXPERIMENTAL}batching": ("_DenseToSparseBatchDataset", "_MapAndBatchDataset"),
    f"{_EXPERIMENTAL}distribute": ("_LegacyRebatchDataset",),
}
# Their elements are made from the contents of their inputs' elements.
_TAKE_APART = {
    f"{_OPS}flat_map_op": ("_FlatMapDataset",),
    f"{_OPS}interleave_op": ("_InterleaveDataset", "_ParallelInterleaveDataset"),
    f"{_OPS}readers": ("ParallelInterleaveDataset",),
    f"{_OPS}unbatch_op": ("_UnbatchDataset",),
}
_PREFETCH = {f"{_OPS}prefetch_op": ("_PrefetchDataset",)}
_GENERATOR = {f"{_OPS}from_generator_op": ("_GeneratorDataset",)}
_MAP = {f"{_OPS}map_op": ("_MapDataset", "_ParallelMapDataset")}
_ZIP = {f"{_OPS}zip_op": ("_ZipDataset",)}
_SHUFFLE = {f"{_OPS}shuffle_op": ("_ShuffleDataset",)}
_OPTIONS = {f"{_OPS}dataset_ops": ("_OptionsDataset",)}
# Transformations with a count.
_COUNTED = {f"{_OPS}{name}_op": (f"_{name.title()}Dataset",) for name in ("repeat", "skip", "take")}
_SHARD = {f"{_OPS}shard_op": ("_ShardDataset",)}
_CACHE = {f"{_OPS}cache_op": ("CacheDataset",)}
_TENSORS = {
    f"{_OPS}from_tensor_slices_op": ("_TensorSliceDataset",),
    f"{_OPS}from_tensors_op": ("_TensorDataset",),
    f"{_OPS}range_op": ("_RangeDataset",),
}
_SHUFFLE_FIELDS = ("_buffer_size", "_seed", "_seed2", "_reshuffle_each_iteration", "_name")
_SCAN_FIELDS = ("_initial_state", "_state_structure", "_scan_func", "_output_classes",
                "_element_spec", "_name")  # fmt: skip


def _is(dataset: Any, classes: Mapping[str, tuple[str, ...]]) -> bool:
    """Whether `dataset` is an instance of one of `classes`, by module, or of a subclass."""
    return any(kind.__name__ in classes.get(kind.__module__, ()) for kind in type(dataset).__mro__)


def is_tensorflows(dataset: Any) -> bool:
    """Whether its class is TensorFlow's, and not the script's."""
    return type(dataset).__module__.startswith(_PACKAGE)


def has_batches(dataset: Any) -> bool:
    """Whether its elements are batches, made by it or by a dataset before it.

    A class that is not listed above is assumed to pass on the elements of its inputs.
    """
    if _is(dataset, _TAKE_APART) or hasattr(dataset, "_tf_mpi_keys"):  # see keyed_maps.py
        return False
    return _is(dataset, _MAKE_BATCHES) or any(map(has_batches, dataset._inputs()))


def is_prefetch(dataset: Any) -> bool:
    return _is(dataset, _PREFETCH)


def gets_prefetch(dataset: Any) -> bool:
    """Whether tf.data appends a prefetch when it is iterated, as it does if there is none."""
    allowed = dataset.options().experimental_optimization.inject_prefetch is not False
    while _is(dataset, _OPTIONS):
        dataset = dataset._input_dataset
    return allowed and not is_prefetch(dataset)


def is_of_generator(dataset: Any) -> bool:
    """Whether a Python generator yields its elements."""
    return _is(dataset, _GENERATOR)


def is_map(dataset: Any) -> bool:
    return _is(dataset, _MAP)


def is_batch(dataset: Any) -> bool:
    """Whether it is a batch(), or a padded_batch() that pads all batches to the same shapes."""
    return _is(dataset, _BATCH) or (_is(dataset, _PADDED_BATCH) and _pads_to_one_shape(dataset))


def origin(dataset: Any) -> Any:
    """The transformation that made the elements of `dataset`; later ones pass them on unchanged."""
    from tensorflow.python.data.ops import dataset_ops

    while isinstance(dataset, dataset_ops.UnaryUnchangedStructureDataset):
        dataset = dataset._input_dataset
    return dataset


def is_plain_batch(dataset: Any) -> bool:
    """Whether it is a batch(), not a padded_batch()."""
    return _is(dataset, _BATCH)


def elements_are_batches(dataset: Any) -> bool:
    """Whether its elements are those of a batch() or padded_batch(), unchanged."""
    made = origin(dataset)
    return _is(made, _BATCH) or _is(made, _PADDED_BATCH)


def size_of_batches(dataset: Any) -> tuple[int, bool] | None:
    """(batch size, drop_remainder) of the batch() before it; None if unknown, or if anything but
    maps, caches and transformations that keep elements follows."""
    while is_map(dataset) or is_cache(dataset) or keeps_elements(dataset):
        dataset = dataset._input_dataset
    return batch_size(dataset) if is_batch(dataset) else None


def zipped_sizes(dataset: Any) -> set[int]:
    """The known batch sizes of a zip()'s datasets, or of the dataset itself."""
    while keeps_elements(dataset):
        dataset = dataset._input_dataset
    if is_zip(dataset):
        return set().union(*map(zipped_sizes, dataset._inputs()))
    size = size_of_batches(dataset)
    return set() if size is None else {size[0]}


def is_zip(dataset: Any) -> bool:
    return _is(dataset, _ZIP)


def is_cache(dataset: Any) -> bool:
    """Whether it is a cache in memory: see rebuild_cache. False in graphs."""
    if not _is(dataset, _CACHE) or not tf.executing_eagerly():
        return False
    return tf.get_static_value(dataset._filename) == b""


def is_filled_file(dataset: Any) -> bool:
    """Whether it is a complete cache in a file, whose input is not read."""
    if not _is(dataset, _CACHE):
        return False
    file: Any = tf.get_static_value(dataset._filename)
    return bool(file) and os.path.exists(f"{os.fsdecode(file)}.index")


def is_of_tensors(dataset: Any) -> bool:
    """Whether its elements are slices of tensors in memory, in a fixed order."""
    if _is(dataset, _TENSORS):
        return True
    keeps = is_zip(dataset) or any(_is(dataset, kind) for kind in (_COUNTED, _SHARD, _OPTIONS))
    return keeps and all(map(is_of_tensors, dataset._inputs()))


def name(dataset: Any) -> str:
    """Its name in scripts: "map", "shuffle"."""
    words = type(dataset).__name__.strip("_").removeprefix("Parallel").removesuffix("Dataset")
    return "".join(f"_{word.lower()}" if word.isupper() else word for word in words).strip("_")


def keeps_elements(dataset: Any) -> bool:
    """Whether it drops, repeats, reorders or prefetches elements without looking at them, so that
    `rebuild` can put it over another input."""
    if _is(dataset, _SHUFFLE):  # in a function its seeds are unknown
        return bool(tf.executing_eagerly())
    if _is(dataset, _PREFETCH):
        return constant(dataset._buffer_size) is not None
    return any(_is(dataset, classes) for classes in (_COUNTED, _SHARD, _OPTIONS))


def rebuild(dataset: Any, source: Any) -> Any:
    """The same transformation over another input.

    A shuffle and those that are rebuilt from it share one sequence of seeds: see iterations.py.
    """
    from tensorflow.python.data.ops import dataset_ops, prefetch_op

    if _is(dataset, _SHUFFLE):
        return _rebuild_shuffle(dataset, source)
    if _is(dataset, _COUNTED):
        return type(dataset)(source, dataset._count, name=dataset._name)
    if _is(dataset, _SHARD):
        return type(dataset)(source, dataset._num_shards, dataset._index, dataset._name)
    if _is(dataset, _PREFETCH):
        size = constant(dataset._buffer_size)
        return prefetch_op._PrefetchDataset(source, size, name=dataset._name)
    return dataset_ops._OptionsDataset(source, dataset.options(), name=dataset._name)


def rebuild_cache(dataset: Any, source: Any) -> Any:
    """`source` in a cache that replaces `dataset`, a cache in memory: see iterations.py."""
    made = type(dataset)(source, "", name=dataset._name)
    iterations.register_replacement(made, dataset)
    return made


def _rebuild_shuffle(dataset: Any, source: Any) -> Any:
    from tensorflow.python.data.ops import dataset_ops

    held = {field: value for field, value in vars(dataset).items() if field in _SHUFFLE_FIELDS}
    new = object.__new__(type(dataset))
    vars(new).update(held, _input_dataset=source)
    variant = tf.raw_ops.ShuffleDatasetV3(
        input_dataset=source._variant_tensor,
        buffer_size=dataset._buffer_size,
        seed=dataset._seed,
        seed2=dataset._seed2,
        seed_generator=tf.raw_ops.DummySeedGenerator(),
        reshuffle_each_iteration=dataset._reshuffle_each_iteration,
        **new._common_args,
    )
    dataset_ops.UnaryUnchangedStructureDataset.__init__(new, source, variant)
    iterations.register_replacement(new, dataset)
    return new


def scan_fields(dataset: Any) -> dict[str, Any]:
    """The attributes of `dataset`, a scan, without its input; rebuild_scan takes them."""
    return {field: value for field, value in vars(dataset).items() if field in _SCAN_FIELDS}


def rebuild_scan(held: dict[str, Any], source: Any) -> Any:
    """The scan with the attributes `held` over another input of the same spec; traces nothing."""
    from tensorflow.python.data.ops import dataset_ops, scan_op
    from tensorflow.python.data.util import structure

    new = object.__new__(scan_op._ScanDataset)
    vars(new).update(held, _input_dataset=source)
    function = new._scan_func.function
    variant = tf.raw_ops.ScanDataset(
        input_dataset=source._variant_tensor,
        initial_state=structure.to_tensor_list(new._state_structure, new._initial_state),
        other_arguments=function.captured_inputs,
        f=function,
        preserve_cardinality=True,
        **new._common_args,
    )
    dataset_ops.UnaryDataset.__init__(new, source, variant)
    return new


def rebuild_map(dataset: Any, source: Any, function: Callable[..., Any]) -> Any:
    """`source` mapped by `function`, in order, with the options of `dataset`, a map."""
    options = {"name": dataset._name}
    if hasattr(dataset, "_num_parallel_calls"):
        options |= {"num_parallel_calls": dataset._num_parallel_calls, "deterministic": True}
    for field in ("_use_unbounded_threadpool", "_force_synchronous"):
        if getattr(dataset, field, False):
            options[field.removeprefix("_force").removeprefix("_")] = True
    return source.map(function, **options)


def batch_size(dataset: Any) -> tuple[int, bool] | None:
    """The batch size and drop_remainder of a batch(); None if unknown."""
    size, drops = constant(dataset._batch_size), constant(dataset._drop_remainder)
    return None if size is None or drops is None else (size, bool(drops))


def rebuild_batch(dataset: Any, source: Any, size: int) -> Any:
    """As `dataset`, a batch() or padded_batch(), but with `size` elements of `source` in a batch.

    These are pairs of a tag, an int64 scalar of the caller's, and an element of `dataset`'s input.
    They stay in order.
    """
    drops, options = dataset._drop_remainder, {"name": dataset._name}
    if _is(dataset, _PADDED_BATCH):
        shapes, values = dataset._padded_shapes, dataset._padding_values
        zero = tf.constant(0, tf.int64)
        return source.padded_batch(size, ([], shapes), (zero, values), drops, **options)
    if hasattr(dataset, "_num_parallel_calls"):
        options |= {"num_parallel_calls": dataset._num_parallel_calls, "deterministic": True}
    return source.batch(size, drops, **options)


def _pads_to_one_shape(dataset: Any) -> bool:
    """Whether no shape depends on the longest element of a batch."""
    from tensorflow.python.data.util import nest

    specs = tf.data.experimental.get_structure(dataset._input_dataset)
    given = [spec.shape for spec in nest.flatten(specs)]
    padded = [spec.shape for spec in nest.flatten(dataset.element_spec)]
    for source, made in zip(given, padded, strict=True):
        if source.rank is None or made.rank is None:
            return False
        if any(size is None and of is None for size, of in zip(made[1:], source, strict=True)):
            return False
    return True


def constant(tensor: Any) -> int | None:
    """The static value of a scalar tensor of integers; None if unknown."""
    value = tf.get_static_value(tensor)
    return None if value is None else int(value)
