"""TensorFlow's own datasets, by their classes: TensorFlow 2.16 to 2.21.

Nothing else asks for the class of a dataset. One that is not here is taken for one that passes the
elements of its inputs on, one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PACKAGE = "tensorflow.python.data."
_OPS, _EXPERIMENTAL = f"{_PACKAGE}ops.", f"{_PACKAGE}experimental.ops."
_MAKE_BATCHES = {
    f"{_OPS}batch_op": ("_BatchDataset", "_ParallelBatchDataset"),
    f"{_OPS}padded_batch_op": ("_PaddedBatchDataset",),
    f"{_OPS}rebatch_op": ("_RebatchDataset",),
    f"{_OPS}sparse_batch_op": ("_DenseToSparseBatchDataset",),
    f"{_EXPERIMENTAL}batching": ("_DenseToSparseBatchDataset", "_MapAndBatchDataset"),
    f"{_EXPERIMENTAL}distribute": ("_LegacyRebatchDataset",),
}
# Their elements are made of what is in those of their inputs.
_TAKE_APART = {
    f"{_OPS}flat_map_op": ("_FlatMapDataset",),
    f"{_OPS}interleave_op": ("_InterleaveDataset", "_ParallelInterleaveDataset"),
    f"{_OPS}readers": ("ParallelInterleaveDataset",),
    f"{_OPS}unbatch_op": ("_UnbatchDataset",),
}
_PREFETCH = {f"{_OPS}prefetch_op": ("_PrefetchDataset",)}
_GENERATOR = {f"{_OPS}from_generator_op": ("_GeneratorDataset",)}


def _is(dataset: Any, classes: Mapping[str, tuple[str, ...]]) -> bool:
    """Whether `dataset` is of one of `classes`, by module, or of one that is made of it."""
    return any(kind.__name__ in classes.get(kind.__module__, ()) for kind in type(dataset).__mro__)


def is_tensorflows(dataset: Any) -> bool:
    """Whether its class is TensorFlow's, and not one of the script's own."""
    return type(dataset).__module__.startswith(_PACKAGE)


def has_batches(dataset: Any) -> bool:
    """Whether its elements are batches that it, or what it passes on, has made."""
    if _is(dataset, _TAKE_APART):
        return False
    return _is(dataset, _MAKE_BATCHES) or any(map(has_batches, dataset._inputs()))


def is_prefetch(dataset: Any) -> bool:
    return _is(dataset, _PREFETCH)


def is_of_generator(dataset: Any) -> bool:
    """Whether a generator of Python's yields its elements."""
    return _is(dataset, _GENERATOR)
