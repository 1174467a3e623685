"""Updates of trained variables that are made of no average: the ranks compare what came of them.

In a loop that feeds all ranks the same, each rank's own update is that of the others, and nothing
need be averaged. Where ranks see different data they would train as many models, so the first step
is compared, before the second begins: ranks that differ are an error.
"""

from __future__ import annotations

import itertools
from typing import Any

from tensorflow.mpi._src.average import lineage
from tensorflow.mpi._src.messaging import collectives, control_plane
from tensorflow.mpi._src.runtime import c_api, group, log
from tensorflow.mpi._src.variables import large_variables, naming

trained: set[str] = set()  # keys of variables of which gradients were taken

_comparisons = itertools.count(1)
_eager_steps = 0
_updates_checked = False  # updates without an average: compared, or seen to by Keras's fit


def key(variable: Any) -> str:
    """Of a tf.Variable: the same whenever it is met in this process."""
    handle = getattr(variable, "handle", None)
    return _handle_key(handle) if handle is not None else str(variable.name)


def _handle_key(handle: Any) -> str:
    if hasattr(handle, "_numpy_internal"):
        return naming.handle_name(handle)[1]
    return str(handle.name)


def assigned(graph: Any, op: Any, numbers: list[Any]) -> None:
    """`op` of `graph` assigns what is made of `numbers` to a variable."""
    handle = naming.external(graph, op.inputs[0])
    if handle is None or _handle_key(handle) not in trained:
        return
    if all(map(lineage.is_same_on_ranks, numbers)):
        return
    naming.graph_trains(graph, [handle])  # so that it starts as rank 0's
    while graph is not None and hasattr(graph, "outer_graph"):
        if not hasattr(graph, "_tf_mpi_own_updates"):
            graph._tf_mpi_own_updates = {}
        graph._tf_mpi_own_updates[id(handle)] = handle
        graph = graph.outer_graph


def taken_eagerly(variables: list[Any]) -> None:
    """A step of a loop in eager code that is fed what all ranks are, for all that is known."""
    global _eager_steps
    _eager_steps += 1
    if _eager_steps == 2 and c_api.stats()["gradients"] == 0:
        compare([variable.handle for variable in variables])


def function_called(graph: Any) -> None:
    """`graph` is about to run, from eager code."""
    handles = getattr(graph, "_tf_mpi_own_updates", None)
    if handles is None or collectives.called_by_script:
        return
    graph._tf_mpi_calls = getattr(graph, "_tf_mpi_calls", 0) + 1
    if graph._tf_mpi_calls == 2:
        compare(list(handles.values()))


def compare(handles: list[Any]) -> None:
    """A meeting of all ranks after the first step; RuntimeError if these variables differ."""
    found = differing(handles)
    if found is not None:
        raise RuntimeError(_message(*found))
    mark_checked()


def differing(handles: list[Any]) -> tuple[str, int] | None:
    """A meeting of all ranks: a variable that is not the same on all of them, and a rank whose
    differs from rank 0's; None if all are."""
    from tensorflow.python.framework import ops

    label = f"own updates {next(_comparisons)}"
    with ops.init_scope():
        found = {c_api.variable_name(*naming.handle_name(h)): _digest(h) for h in handles}
    everyone = control_plane.headers(label, found)
    for rank, theirs in enumerate(everyone):
        for name in theirs:
            if name in everyone[0] and theirs[name] != everyone[0][name]:
                return name, rank
    return None


def _digest(handle: Any) -> int:
    from tensorflow.python.framework import dtypes
    from tensorflow.python.ops import gen_resource_variable_ops as raw

    dtype = dtypes.as_dtype(handle._handle_data.shape_and_type[0].dtype)
    shape = raw.variable_shape(handle).numpy().tolist()
    if large_variables.is_large(dtype, shape):
        return large_variables.EagerVariable(handle).digest()
    return control_plane.digest(raw.read_variable_op(handle, dtype).numpy())


def _message(name: str, rank: int) -> str:
    return (
        f"after the first step '{name}' of rank {rank} is not rank 0's: the script updated it by "
        f"what each rank has of its own, not by an average, so {group.size} ranks would train "
        f"{group.size} models. Take the gradient and update the variable in one tf.function or in "
        "Keras's fit, or apply it with an optimizer, or average it with tf.mpi.allreduce(gradient) "
        "first; or, if each rank has data of its own, say so before with tf.mpi.own_data(); or run "
        "with TF_MPI_ENABLE=0"
    )


def mark_checked() -> None:
    """Updates that nothing averages have been looked at, or will be."""
    global _updates_checked
    _updates_checked = True


def warn_if_nothing_was_averaged() -> None:
    """At exit, rank 0: a script that trained, if it did, by other ways than Apply ops.

    One that calls collectives of its own knows what it does. Keras's fit checks by itself, and
    evaluate that the ranks hold one model.
    """
    if group.rank != 0 or group.size == 1 or collectives.called_by_script or _updates_checked:
        return
    if c_api.stats()["gradients"] == 0:
        log.say(
            "no optimizer op was run, so no gradient was averaged. If this script trains, its "
            f"{group.size} ranks have trained {group.size} models: apply gradients with an "
            "optimizer of Keras or tf.compat.v1.train, or average them with "
            "tf.mpi.allreduce(gradient)"
        )
