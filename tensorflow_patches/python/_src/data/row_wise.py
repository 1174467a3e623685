"""Whether a map of batches works row by row, so that it can be applied to some of the rows.

Decided from its ops, by the rules of the global batch (global_batch/rules.py).
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.data import batch_shard, contents, determinism, transformations
from tensorflow.mpi._src.global_batch import kinds, samples
from tensorflow.mpi._src.global_batch.kinds import Kind
from tensorflow.mpi._src.global_batch.sizes import ONE


def function(dataset: Any) -> Any:
    """The function of `dataset`, a map of batches, for any number of rows.

    If it cannot be applied to some of the rows, a str with the reason, for users.
    """
    wrapped = dataset._map_func
    why = determinism.why_not_delayed(wrapped)
    if why is not None:
        return why
    spec = dataset._input_dataset.element_spec
    if not _is_of_tensors(spec) or not _is_of_tensors(dataset.element_spec):
        return "takes or returns tensors that are not dense, or of unknown rank"
    if batch_shard.static_rows(spec) is not None:
        wrapped = _of_any_rows(wrapped, spec)
        if isinstance(wrapped, str):
            return wrapped
    return _why_mixed(wrapped) or wrapped


def has_one_length(dataset: Any) -> bool:
    """Whether all tensors of a batch certainly have the same number of rows."""
    return batch_shard.of_one_length(dataset.element_spec) or transformations.elements_are_batches(
        dataset
    )


def _is_of_tensors(spec: Any) -> bool:
    return all(
        isinstance(leaf, tf.TensorSpec) and leaf.shape.rank is not None
        for leaf in tf.nest.flatten(spec)
    )


def _of_any_rows(wrapped: Any, spec: Any) -> Any:
    """The script's function traced again, because in a graph of static size, sizes are constants;
    or a str with the reason, for users, if that fails."""
    from tensorflow.python.data.ops import structured_function

    def of_any(leaf: Any) -> Any:
        return tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype) if leaf.shape.rank else leaf

    try:
        return structured_function.StructuredFunctionWrapper(
            wrapped._func, "Dataset.map()", input_structure=tf.nest.map_structure(of_any, spec)
        )
    except Exception as error:
        return f"works only for batches of one size: {error}"


def _why_mixed(wrapped: Any) -> str | None:
    """Why a function does not treat each row separately, for users; None if it does."""
    graph = wrapped.function.graph
    if "Assert" in contents.node_ops(graph.as_graph_def()):
        return "checks a whole batch (Assert)"
    leaves = tf.nest.flatten(wrapped._input_structure)
    analysis = kinds.Analysis({
        kinds.key(given): Kind.ROWS if samples.is_batched(leaf) else Kind.CONST
        for given, leaf in zip(graph.inputs, leaves)
    })  # fmt: skip
    for made in graph.outputs:
        dep = analysis.dependence(made)
        if made.shape.rank == 0:
            if dep.is_const:
                continue
        elif dep.kind in kinds.ROWS and dep.outer == ONE and dep.inner == ONE:
            if made.shape[0] is None:
                continue
            return "works only for batches of one size"  # by set_shape or tf.ensure_shape
        op = analysis.why(made)
        return f"mixes the samples of a batch{f' ({op.type})' if op is not None else ''}"
    if analysis.foreign_draws:
        return f"draws for a whole batch ({analysis.foreign_draws[0].type})"
    return None
