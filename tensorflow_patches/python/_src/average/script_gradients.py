"""Gradients that a script takes itself, averaged if they reach an update.

Optimizers average the gradients that they receive. But if a script first changes gradients (clips
them by their norm) or updates without an optimizer (w.assign_sub(rate * gradient)), its result is
that of one process only if the gradients were averaged where they were taken. So:

- In a graph every gradient passes through an IdentityN. Attributes turn it into an average once a
  value computed from it reaches an optimizer or an assignment. An optimizer that receives it
  unchanged takes the input of the IdentityN and averages in its own way. A gradient that reaches no
  update is never averaged. The search does not enter functions from their results: a gradient that
  a tf.function returns is averaged only by an optimizer, after all that the script does with it.
- In eager code it is unknown what happens to a gradient later. It is averaged at once if the ranks
  see different data: in a step of Keras, and in a loop whose data differ by rank, unless the script
  called an allreduce or allgather outside of graphs before its first gradient, and so may average
  by itself.

Gradients of tensors, and in eager code gradients inside another tape, are left alone. Variables
that are updated from anything else are compared after the first step (own_updates.py).
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.mpi import config
from tensorflow.mpi._src.average import averaging, carrier, lineage, own_updates, scope
from tensorflow.mpi._src.messaging import collectives, control_plane
from tensorflow.mpi._src.runtime import group
from tensorflow.mpi._src.variables import naming, unwrap

_LABEL = "gradients taken"
_averages_seen = False  # whether the script has received an average in eager code
_rows_compared = itertools.count(1)
# Whether the script is assumed to average by itself; None until it first takes an eager gradient.
_averages_itself: bool | None = None
# How a function uses an argument: an update uses it, or a value computed from it; or an optimizer
# receives it unchanged.
_ASSIGNED, _PASSED_ON = "assigned", "passed on"


@dataclasses.dataclass
class _Taken:
    """The IdentityN of some gradients of a graph, which becomes an average on demand."""

    op: Any
    variables: list[Any]  # the tf.Variables whose gradients these are
    inputs: list[Any]  # the tensors to average; if of_shares, this rank's shares, to add up
    version: int  # graph.version when the op was added
    slices: Any = None  # a sparse gradient as it was taken; None if dense
    duplicates: int = 0  # for a sparse gradient: see scope.duplicates
    is_average: bool = False
    of_shares: bool = False  # taken inside scope.shares()


def taken(gradients: Any, sources: Any) -> list[Any]:
    """See hooks.gradients_taken."""
    gradients = list(gradients)
    if group.size == 1 or len(gradients) != len(sources):
        return gradients
    if scope.does_averaging_follow() and not scope.is_inside_shares():
        return gradients
    trained = [
        (i, variable)
        for i, (gradient, source) in enumerate(zip(gradients, sources, strict=True))
        if _is_number(gradient) and (variable := variable_of(source)) is not None
    ]
    if not trained:
        return gradients
    pass_on = _eagerly if tf.executing_eagerly() else _in_graph
    found = pass_on([gradients[i] for i, _ in trained], [v for _, v in trained])
    for (i, _), gradient in zip(trained, found, strict=True):
        gradients[i] = gradient
    return gradients


def _is_number(gradient: Any) -> bool:
    if not isinstance(gradient, (tf.Tensor, tf.IndexedSlices)):
        return False
    return bool(gradient.dtype.is_floating or gradient.dtype.is_complex)


def variable_of(source: Any) -> Any:
    """The trainable tf.Variable that `source` is or wraps, as Keras's variables do; or None."""
    source = unwrap.tf_variable(source)
    return source if isinstance(source, tf.Variable) and source.trainable else None


def _eagerly(gradients: list[Any], variables: list[Any]) -> list[Any]:
    from tensorflow.python import pywrap_tfe

    global _averages_itself
    if not pywrap_tfe.TFE_Py_TapeSetIsEmpty() or scope.is_inside_already_averaged():
        return _as_parts(gradients)
    if _averages_itself is None:
        _averages_itself = collectives.combined_by_script
    own_updates.trained.update(map(own_updates.key, variables))
    if not (scope.is_in_step() or (_has_own_data() and not _averages_itself)):
        if not _averages_itself:
            own_updates.taken_eagerly(variables)
        return _as_parts(gradients)
    names = [naming.variable_trained(None, variable) for variable in variables]
    averages = averaging.average_all(gradients, names, _LABEL, every_row=True)
    for gradient in averages:
        note_average(gradient)
    return averages


def _as_parts(gradients: list[Any]) -> list[Any]:
    """Gradients that are not averaged, as the script sees them: those of this rank's part."""
    if not scope.is_inside_shares():
        return gradients

    def parts(values: list[Any]) -> list[Any]:
        return [tf.math.divide_no_nan(v, tf.cast(scope.share(), v.dtype)) for v in values]

    return averaging.apply_to_values(gradients, parts)


def note_average(gradient: Any) -> None:
    """Marks an eager gradient that the script sees as an average."""
    global _averages_seen
    _averages_seen = True
    lineage.values_of(gradient)._tf_mpi_averaged = True


def _has_own_data() -> bool:
    """Whether, as far as known, the script's loop sees different data on each rank."""
    return scope.is_divided() or config.get("TF_MPI_SHARD") in ("dataset", "off")


def _in_graph(gradients: list[Any], variables: list[Any]) -> list[Any]:
    own_updates.trained.update(map(own_updates.key, variables))
    weight = scope.gradient_weight()
    weight = tf.convert_to_tensor(1.0 if weight is None else weight, dtype=tf.float32)
    if scope.is_replicated_step():
        return averaging.apply_to_values(
            gradients, lambda values: _pass_all(values, variables, weight)
        )
    found = list(gradients)
    dense = []
    for i, gradient in enumerate(gradients):
        if not isinstance(gradient, tf.IndexedSlices):
            dense.append(i)
            continue
        slices = averaging.with_tensors(gradient)
        inputs = [_of_any_length(slices.values), _of_any_length(slices.indices)]
        parts = _pass(inputs, [variables[i]], weight, slices)
        found[i] = tf.IndexedSlices(*parts, slices.dense_shape)
    passed = _pass_all([gradients[p] for p in dense], [variables[p] for p in dense], weight)
    for i, tensor in zip(dense, passed, strict=True):
        found[i] = tensor
    return found


def _pass_all(tensors: list[Any], variables: list[Any], weight: Any) -> list[Any]:
    """Passes dense tensors through IdentityNs, one for each future average."""
    found = list(tensors)
    for bucket in averaging.buckets(tensors):
        parts = _pass([tensors[i] for i in bucket], [variables[i] for i in bucket], weight)
        for i, part in zip(bucket, parts, strict=True):
            found[i] = part
    return found


def _of_any_length(tensor: Any) -> Any:
    """The tensor with an unknown number of rows: its average has another number."""
    if tensor.shape.rank is None or tensor.shape.dims[0].value is None:
        return tensor
    return tf.compat.v1.placeholder_with_default(tensor, [None, *tensor.shape[1:]])


def _pass(inputs: list[Any], variables: list[Any], weight: Any, slices: Any = None) -> list[Any]:
    """Passes `inputs` through an IdentityN, and notes it as _Taken; see there for the arguments."""
    values = inputs if slices is None else inputs[:1]
    passed = [*_as_parts(values), *inputs[len(values) :], weight]
    outputs = tf.identity_n(passed, name="mpi_gradients")
    op = outputs[0].op
    graph = op.graph
    naming.noted(graph, "_tf_mpi_taken", dict)[op] = _Taken(
        op=op,
        variables=variables,
        inputs=inputs,
        version=graph.version,
        slices=slices,
        duplicates=scope.duplicates(True),
        of_shares=scope.is_inside_shares(),
    )
    return list(outputs[:-1])


def resolve(gradient: Any) -> tuple[Any, bool]:
    """The gradient that an optimizer should use, and whether it is already an average.

    For a gradient that the script passes on unchanged it is the input of its IdentityN. For any
    other, the gradients that it was computed from become averages. In eager code it is `gradient`
    itself; collective for a sparse one (_are_same_rows).
    """
    tensor = lineage.values_of(gradient)
    if not hasattr(tensor, "op") or hasattr(tensor, "_numpy_internal"):
        return gradient, lineage.is_averaged(gradient) or _are_same_rows(gradient)
    taken = _taken_by(tensor.op)
    if taken is None:
        direct = tensor.op.type == "Placeholder"
        _average_sources(tensor, _PASSED_ON if direct else _ASSIGNED)
        return gradient, lineage.is_averaged(gradient)
    # An optimizer would average a share as a gradient of a part. In a branch it would average only
    # on the ranks that take it; an average outside makes a condition on gradients the same on all.
    if taken.of_shares or taken.op.graph is not tf.compat.v1.get_default_graph():
        _become_average(taken)
    if taken.is_average:
        return gradient, True
    if taken.slices is not None:
        return taken.slices, False
    (found,) = averaging.apply_to_values([gradient], lambda _: [taken.inputs[tensor.value_index]])
    return found, False


def average_at_its_source(tensor: Any) -> None:
    """In a graph: the gradients that `tensor` is, or is computed from, become averages."""
    _average_sources(tensor, _ASSIGNED)


def _are_same_rows(gradient: Any) -> bool:
    """Whether an eager sparse gradient is the same on all ranks, as if computed from averages.

    Collective if the script has received averages. A dense gradient needs no such check, because
    averaging it again changes nothing; the rows would be repeated once for each rank.
    """
    if not _averages_seen or not hasattr(gradient, "indices") or not tf.executing_eagerly():
        return False
    if scope.is_replicated_step():
        return False  # rows are averaged like dense gradients
    parts = [np.asarray(part) for part in (gradient.values, gradient.indices)]
    digests = [control_plane.digest(part) for part in parts]
    everyone = control_plane.headers(f"rows {next(_rows_compared)}", digests)
    return all(theirs == digests for theirs in everyone)


def _taken_by(op: Any) -> _Taken | None:
    found: _Taken | None = getattr(op.graph, "_tf_mpi_taken", {}).get(op)
    return found


def assigned(graph: Any, op: Any) -> None:
    """See hooks.assign_op_created."""
    if group.size == 1 or scope.is_inside_already_averaged():
        return
    numbers = [t for t in op.inputs[1:] if t.dtype.is_floating or t.dtype.is_complex]
    for tensor in numbers:
        _average_sources(tensor, _ASSIGNED)
    own_updates.assigned(graph, op, numbers)


def function_entered(inner: Any, arguments: Any, eagerly: bool) -> None:
    """See hooks.function_entered."""
    if eagerly:
        return own_updates.function_called(inner)
    wanted = getattr(inner, "_tf_mpi_arguments", None)
    if not wanted:
        return
    for inside, tensor in zip(inner.inputs, arguments):
        use = wanted.get(id(inside))
        if use == _ASSIGNED:
            _average_sources(tensor, use)
        elif use == _PASSED_ON and hasattr(tensor, "op"):
            resolve(tensor)


def _average_sources(tensor: Any, use: str) -> None:
    """Turns the nearest taken gradients on each path back from `tensor` into averages.

    `use` is recorded for a function's arguments at which a path ends, for function_entered.
    """
    todo = [tensor]
    while todo:
        tensor = todo.pop()
        if not hasattr(tensor, "op") or not _may_hold_taken(tensor.graph):
            continue  # a captured eager tensor has no op
        op, graph = tensor.op, tensor.graph
        walked = naming.noted(graph, "_tf_mpi_walked", set)
        if op in walked and (use == _PASSED_ON or op.type != "Placeholder"):
            continue
        walked.add(op)
        taken = _taken_by(op)
        if taken is not None:
            _become_average(taken)
        elif op.type == "Placeholder":
            outer = lineage.captured(tensor)
            if outer is None and hasattr(graph, "captures"):
                naming.noted(graph, "_tf_mpi_arguments", dict)[id(tensor)] = use
            todo.append(outer)
        elif not _ends_walk(op):
            todo.extend(op.inputs)


def _ends_walk(op: Any) -> bool:
    """Whether the output of `op` is the same on all ranks, or comes from a collective."""
    same = op.type in lineage.SAME_ON_ALL_RANKS or lineage.is_average(op)
    return same or op.type.startswith("TfMpi")


def _may_hold_taken(graph: Any) -> bool:
    """Whether a taken gradient may be in the graph or come as an argument; avoids the search."""
    while graph is not None:
        if hasattr(graph, "_tf_mpi_taken") or hasattr(graph, "captures"):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def _become_average(taken: _Taken) -> None:
    if taken.is_average:
        return
    taken.is_average = True

    graph = taken.op.graph
    names = [naming.variable_trained(graph, variable) for variable in taken.variables]
    if taken.version <= getattr(graph, "_tf_mpi_ran", 0):
        raise RuntimeError(
            f"the gradient of '{names[0]}' was taken before a Session ran this graph, and reaches "
            "an update that was created after that, so it can no longer be averaged over ranks. "
            "Build the whole training operation before the first run, or run with TF_MPI_ENABLE=0"
        )
    label = carrier.numbered(_LABEL, carrier.count_in_graph(graph, _LABEL))
    # The new inputs must not wait for the script's control dependencies.
    with graph.as_default(), tf.control_dependencies(None):
        inputs, attributes = averaging.average_inputs(taken.inputs, taken.slices, taken.duplicates)
    for i, tensor in enumerate(inputs):
        taken.op._update_input(i, tensor)
    carrier.mark(taken.op, names, label, **attributes)
