"""Operations that average tensors over the ranks, before anything clips or applies them.

In eager code they are an op of ours, in graphs a stock op (carrier.py), and in compiled functions
one call for all gradients (compiled.py).
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.mpi import config
from tensorflow.mpi._src.average import carrier, compiled, scope
from tensorflow.mpi._src.runtime import c_api, group

# TensorFlow's executor schedules a closure for each op that follows an asynchronous op, but runs
# cheap ops inline if they follow a synchronous op. So an average with at least this many results is
# followed by an identity op.
_FAN_OUT = 8


def average(
    tensors: Sequence[Any], names: Sequence[str], label: str, weight: Any = None
) -> list[Any]:
    """The averages over all ranks of `weight * tensor`.

    Args:
      tensors: dense tensors or variables of floating or complex dtypes; the same number, dtypes and
        shapes on all ranks.
      names: one per tensor, the same on all ranks; errors contain them.
      label: a name for the operation. Name and label together must be unique among concurrent
        averages. In one graph the second and further averages of a label are numbered.
      weight: float32 scalar tensor, not negative; None is 1. Its mean over ranks should be 1. A
        rank with weight 0 contributes zeros, even if its tensors contain NaN.

    Returns:
      Tensors of the shapes and dtypes of `tensors`; on one rank, their values unchanged.

    Raises:
      ValueError: there are not as many names as tensors.
      TypeError: a tensor is sparse; see average_slices.
      When it runs: tf.errors.InvalidArgumentError, DeadlineExceededError, UnavailableError, as
      tensorflow.mpi.allreduce.
    """
    if len(tensors) != len(names):
        raise ValueError(
            f"'{label}' needs one name for each tensor; tensors: {len(tensors)}, names: "
            f"{len(names)}"
        )
    for tensor, name in zip(tensors, names, strict=True):
        if isinstance(tensor, tf.IndexedSlices):
            raise TypeError(f"'{name}' of the average '{label}' is sparse; it must be dense")
    dense = [tf.convert_to_tensor(tensor) for tensor in tensors]
    if not dense or scope.is_alone():
        return dense
    if compiled.is_compiled():
        return compiled.average_in_one_call(dense, names, label, weight)
    scale = tf.convert_to_tensor(1.0 if weight is None else weight, dtype=tf.float32)
    if tf.executing_eagerly():
        return _eager(dense, list(names), label, scale)
    return _in_graph(dense, list(names), label, scale)


def average_of_upstream(
    upstream: Sequence[Any], names: Sequence[str], label: str, weight: Any
) -> list[Any]:
    """The weighted averages of `upstream`, the gradients of results that are the same on all ranks.

    Inside scope.shares() these are shares of a sum; the result is this rank's share of the sums.
    """
    if weight is None or not scope.is_inside_shares():
        return average(upstream, names, label, weight)
    with scope.weighted(weight):
        share, weight_for_sum = scope.share(), scope.gradient_weight()
    sums = average(upstream, names, label, weight_for_sum)
    return [one * tf.cast(share, one.dtype) for one in sums]


def pass_through_hosts() -> bool:
    """Whether averages of tensors on GPUs pass through host memory. Collective.

    The ranks choose a path when all of them first average something on GPUs: now, if not before.
    """
    gpus = tf.config.list_logical_devices("GPU")
    if not gpus:
        return False
    if c_api.load().tfmpi_gpus_staged() < 0:
        with tf.init_scope(), tf.device(gpus[0].name):
            average([tf.constant([group.rank + 1.0])], ["probe"], "choosing the GPUs' path")
    return int(c_api.load().tfmpi_gpus_staged()) > 0


def _eager(tensors: list[Any], names: list[str], label: str, weight: Any) -> list[Any]:
    from tensorflow.python.eager import context, execute

    types = tuple(tensor.dtype.as_datatype_enum for tensor in tensors)
    averages: list[Any] = execute.execute(
        b"TfMpiAverage",
        len(tensors),
        inputs=[*tensors, weight],
        attrs=("T", types, "label", label, "names", names),
        ctx=context.context(),
    )
    return averages


def _in_graph(tensors: list[Any], names: list[str], label: str, weight: Any) -> list[Any]:
    graph = tf.compat.v1.get_default_graph()
    numbered = carrier.numbered(label, carrier.count_in_graph(graph, label))
    tensors = [carrier.not_constant(tensor) for tensor in tensors]
    averages: list[Any] = [None] * len(tensors)
    for bucket in buckets(tensors):
        results = carrier.marked_identity(
            [tensors[i] for i in bucket], [names[i] for i in bucket], numbered, weight
        )
        if len(results) >= _FAN_OUT and "synchronous_updates" in config.get("TF_MPI_EXTRAS"):
            results = carrier.kept_identity(results)
        for i, result in zip(bucket, results, strict=True):
            averages[i] = result
    return averages


def buckets(tensors: list[Any]) -> list[list[int]]:
    """Groups of indices, from the last tensor to the first; one op averages the tensors of a group.

    The last gradients are computed first, so they are sent while the others are computed, and are
    still in the processor's cache. A large tensor has its own op.
    """
    found: list[list[int]] = []
    max_bytes, large = c_api.op_sizes()
    size = max_bytes  # bytes in the last bucket
    small: list[int] = []
    for i in reversed(range(len(tensors))):
        if _bytes(tensors[i]) >= large:
            found.append([i])
            continue
        if size >= max_bytes:
            small = []
            found.append(small)
            size = 0
        small.append(i)
        size += _bytes(tensors[i])
    return found


def _bytes(tensor: Any) -> int:
    """The size of a tensor; 0 if unknown."""
    return (tensor.shape.num_elements() or 0) * int(tensor.dtype.size)


def average_slices(
    slices: Any, name: str, label: str, weight: Any = None, *, every_row: bool = False
) -> Any:
    """The average over all ranks of `weight * slices`, a sparse gradient, row by row.

    It is the gradient of the whole batch, with duplicates summed unless `every_row`.

    Args:
      slices: tf.IndexedSlices, values [n, ...] of a floating or complex dtype, indices [n] int32 or
        int64, with duplicates. n may differ by rank, and be 0. `dense_shape`, if known, must be the
        same on all ranks.
      name, label, weight: as in `average`; in one graph the second and further averages of a name
        and label are numbered.
      every_row: do not sum duplicates, because the update or the script computes a norm of the rows
        or the square of each. The same on all ranks. See scope.duplicates.

    Returns:
      tf.IndexedSlices, values [m, ...], indices [m], the same on all ranks: each index once, or
      with every_row the rows of all ranks, in the order of ranks. On one rank, `slices` itself. In
      a compiled function, whose shapes are static: either IndexedSlices that may end with zero rows
      of index -1, which compiled scatters skip; or, without every_row, a dense tensor, if that
      moves fewer bytes or the number of rows is not static.

    Raises:
      As `average`.
    """
    if scope.is_alone():
        return slices
    slices = with_tensors(slices)
    if compiled.is_compiled():
        return compiled.average_in_one_call([slices], [name], label, weight, every_row)[0]
    eagerly = tf.executing_eagerly()
    scale = tf.convert_to_tensor(1.0 if weight is None else weight, dtype=tf.float32)
    run = _slices_eagerly if eagerly else _slices_in_graph
    values, indices = run(slices, name, label, scale, scope.duplicates(every_row))
    if eagerly and not every_row:
        values._tf_mpi_distinct = indices
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def with_tensors(slices: Any) -> Any:
    """The slices with tensors inside; a script may have passed tuples or arrays."""
    return tf.IndexedSlices(
        *(
            None if part is None else tf.convert_to_tensor(part)
            for part in (slices.values, slices.indices, slices.dense_shape)
        )
    )


def map_values(function: Callable[[Any], Any], gradient: Any) -> Any:
    """`function` applied to a tensor, or to the values of tf.IndexedSlices."""
    if not isinstance(gradient, tf.IndexedSlices):
        return function(gradient)
    values = function(gradient.values)
    return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)


def with_dense_shape_of(gradient: Any, variable: Any) -> Any:
    """The gradient, with the variable's shape as dense_shape if that has a wrong static number of
    rows: stock TensorFlow ignores dense_shape, our averages use it."""
    from tensorflow.python.framework import tensor_shape

    if not isinstance(gradient, tf.IndexedSlices) or gradient.dense_shape is None:
        return gradient
    shape = tensor_shape.as_shape(variable.shape)
    if not shape.rank or not shape.is_fully_defined():
        return gradient
    if compiled.table_rows(gradient) in (-1, shape.as_list()[0]):
        return gradient
    dense_shape = tf.convert_to_tensor(shape.as_list(), dtype=tf.int32)
    return tf.IndexedSlices(gradient.values, gradient.indices, dense_shape)


def _numbered_names(names: Sequence[str]) -> list[str]:
    """The names, with numbers for the second and further use of a name: tf.Variables may share one.

    The ranks may run the ops of a step in different orders, so names must be unique.
    """
    seen: collections.Counter[str] = collections.Counter()
    numbered = []
    for name in names:
        seen[name] += 1
        numbered.append(carrier.numbered(name, seen[name]))
    return numbered


def _slices_eagerly(slices: Any, name: str, label: str, weight: Any, duplicates: int) -> list[Any]:
    from tensorflow.python.eager import context, execute

    types = (slices.values.dtype.as_datatype_enum, slices.indices.dtype.as_datatype_enum)
    found: list[Any] = execute.execute(
        b"TfMpiSparseAverage",
        2,
        inputs=[slices.values, slices.indices, weight],
        attrs=(
            *("T", types[0], "Tindices", types[1], "label", label),
            *("names", [name], "table_rows", compiled.table_rows(slices)),
            *("duplicates", duplicates),
        ),
        ctx=context.context(),
    )
    return found


def _slices_in_graph(slices: Any, name: str, label: str, weight: Any, duplicates: int) -> list[Any]:
    number = carrier.count_in_graph(tf.compat.v1.get_default_graph(), f"{name} ({label})")
    inputs, attributes = _sparse_inputs(slices, duplicates)
    numbered = carrier.numbered(label, number)
    return carrier.marked_identity(inputs, [name], numbered, weight, **attributes)


def _sparse_inputs(slices: Any, duplicates: int) -> tuple[list[Any], dict[str, Any]]:
    """The inputs and attributes of an average of rows, which auto-clustering leaves alone."""
    attributes = {carrier.TABLE_ROWS: {"i": compiled.table_rows(slices)}}
    attributes |= {carrier.DUPLICATES: {"i": duplicates}, "_XlaCompile": {"b": False}}
    return _of_unknown_length(slices), attributes


def _of_unknown_length(slices: Any) -> list[Any]:
    """Values and indices, with a number of rows that neither TensorFlow nor Grappler can infer.

    An average returns another number of rows than it receives. They would infer that the numbers
    are equal, and fold them into constants, even through PlaceholderWithDefault.
    """
    zero = carrier.opaque_zero(tf.int32)  # these slices copy nothing
    return [slices.values[zero:], slices.indices[zero:]]


def average_all(
    gradients: Sequence[Any], names: Sequence[str], label: str, *, every_row: bool
) -> list[Any]:
    """The averages of gradients (tensors and tf.IndexedSlices), with this thread's weight.

    Dense gradients are averaged together, each sparse gradient by itself. In a compiled function
    all share one call; in a replicated step (scope.replicated_step) sparse values are averaged like
    dense ones, because the ranks' rows have the same indices. See `average` and `average_slices`.
    """
    names = _numbered_names(names)
    weight = scope.gradient_weight()
    if scope.is_replicated_step():
        return apply_to_values(gradients, lambda values: average(values, names, label, weight))
    if gradients and not scope.is_alone() and compiled.is_compiled():
        return compiled.average_in_one_call(gradients, names, label, weight, every_row)
    averages: dict[int, Any] = {}
    dense: list[int] = []
    for i, gradient in enumerate(gradients):
        if isinstance(gradient, tf.IndexedSlices):
            averages[i] = average_slices(gradient, names[i], label, weight, every_row=every_row)
        else:
            dense.append(i)
    averaged = average([gradients[i] for i in dense], [names[i] for i in dense], label, weight)
    averages.update(zip(dense, averaged, strict=True))
    return [averages[i] for i in range(len(gradients))]


def apply_to_values(
    gradients: Sequence[Any], function: Callable[[list[Any]], list[Any]]
) -> list[Any]:
    """The gradients with new values: `function` maps the list of all dense and sparse values."""
    slices = {
        i: with_tensors(gradient)
        for i, gradient in enumerate(gradients)
        if isinstance(gradient, tf.IndexedSlices)
    }
    found = function([getattr(slices.get(i), "values", g) for i, g in enumerate(gradients)])
    for i, sparse in slices.items():
        found[i] = tf.IndexedSlices(found[i], sparse.indices, sparse.dense_shape)
    return found


def average_inputs(
    tensors: list[Any], slices: Any, duplicates: int
) -> tuple[list[Any], dict[str, Any]]:
    """The inputs and attributes that turn an IdentityN of this graph into an average.

    Args:
      tensors: its inputs so far, without the weight.
      slices: the sparse gradient whose values and indices these are; None for dense tensors, and
        for values that are averaged like dense ones.
      duplicates: the value of scope.duplicates where the gradient was taken.
    """
    if slices is None:
        return [carrier.not_constant(tensor) for tensor in tensors], {}
    if compiled.is_compiled():
        return compiled.average_inputs(slices, duplicates)
    return _sparse_inputs(slices, duplicates)
