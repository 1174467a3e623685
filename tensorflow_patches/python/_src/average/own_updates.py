"""Updates of trained variables without an average: the ranks compare the result of the first step.

In a loop that feeds all ranks the same data, the ranks' updates are equal and need no average. If
the ranks see different data, they would train different models. Therefore the variables are
compared before the second step begins; a difference is an error.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.average import lineage
from tensorflow.mpi._src.messaging import collectives, control_plane
from tensorflow.mpi._src.runtime import c_api, group, log
from tensorflow.mpi._src.variables import large_variables, naming

trained: set[str] = set()  # keys of variables whose gradients were taken

_comparisons = itertools.count(1)
_calls = itertools.count(1)  # of taken_eagerly
# Handles of variables whose gradients were taken eagerly, by key; None after the first step.
_first_step: weakref.WeakValueDictionary[str, Any] | None = weakref.WeakValueDictionary()
_compared: dict[str, int] = {}  # digests of the last comparison of _first_step, equal on all ranks
_updates_checked = False  # whether updates without an average are compared, here or by Keras's fit


def key(variable: Any) -> str:
    """Identifies a tf.Variable in this process."""
    handle = getattr(variable, "handle", None)
    return _handle_key(handle) if handle is not None else str(variable.name)


def _handle_key(handle: Any) -> str:
    if hasattr(handle, "_numpy_internal"):
        return naming.handle_name(handle)[1]
    return str(handle.name)


def assigned(graph: Any, op: Any, numbers: list[Any]) -> None:
    """Called when `op` of `graph` assigns to a variable; `numbers`: its floating inputs."""
    handle = naming.external(graph, op.inputs[0])
    if handle is None or _handle_key(handle) not in trained:
        return
    if all(map(lineage.is_same_on_ranks, numbers)):
        return
    naming.graph_trains(graph, [handle])  # so that it starts with rank 0's value
    while graph is not None and hasattr(graph, "outer_graph"):
        naming.noted(graph, "_tf_mpi_own_updates", dict)[id(handle)] = handle
        graph = graph.outer_graph


def taken_eagerly(variables: list[Any]) -> None:
    """Called when gradients are taken eagerly and, as far as known, ranks have the same data.

    Calls 2, 4, 8, ... compare the variables, collectively, so all ranks must make as many calls.
    This ends once a variable has changed and all are equal, or something has been averaged. So a
    first step of n calls, for example one that accumulates gradients, is compared within the
    second. No rank decides this alone: one whose own update is zero would see no change.
    """
    global _first_step, _compared
    step = _first_step  # another thread may end it
    if step is None:
        return
    for variable in variables:
        step[_handle_key(variable.handle)] = variable.handle
    call = next(_calls)
    if call == 1 or call & (call - 1) != 0:
        return
    if c_api.stats()["gradients"] != 0:
        _first_step = None
        return
    found = compare(list(step.values()))
    if any(_compared.get(name, digest) != digest for name, digest in found.items()):
        _first_step = None
    _compared = found


def function_called(graph: Any) -> None:
    """Called when `graph` is about to run, from eager code."""
    handles = getattr(graph, "_tf_mpi_own_updates", None)
    if handles is None or collectives.combined_by_script:
        return
    graph._tf_mpi_calls = getattr(graph, "_tf_mpi_calls", 0) + 1
    if graph._tf_mpi_calls == 2:
        compare(list(handles.values()))


def compare(handles: list[Any]) -> dict[str, int]:
    """Collective: rank 0's digests by name. RuntimeError if these variables differ by rank."""
    everyone = _digests(handles)
    found = _difference(everyone)
    if found is not None:
        raise RuntimeError(_message(*found))
    mark_checked()
    return everyone[0]


def differ(handles: list[Any]) -> bool:
    """Collective: whether any of these variables differs by rank."""
    return _difference(_digests(handles)) is not None


def _digests(handles: list[Any]) -> list[dict[str, int]]:
    """The digests of these variables by name, of each rank."""
    label = f"own updates {next(_comparisons)}"
    with tf.init_scope():
        found = {
            c_api.variable_name(*naming.handle_name(h)): large_variables.digest(h) for h in handles
        }
    return control_plane.headers(label, found)


def _difference(everyone: list[dict[str, int]]) -> tuple[str, int] | None:
    """A variable that differs by rank, and a rank whose value is not rank 0's; None if all are
    equal."""
    for rank, theirs in enumerate(everyone):
        for name in theirs:
            if name in everyone[0] and theirs[name] != everyone[0][name]:
                return name, rank
    return None


def _message(name: str, rank: int) -> str:
    return (
        f"after the first step '{name}' differs between rank {rank} and rank 0: the script updated "
        f"it from each rank's own data, without an average, so {group.size} ranks would train "
        f"{group.size} models. Take the gradient and update the variable in one tf.function or in "
        "Keras's fit, or apply it with an optimizer, or average it with tf.mpi.allreduce(gradient) "
        "first; or, if the script divides the data itself, call tf.mpi.own_data() at its start; or "
        "run with TF_MPI_ENABLE=0"
    )


def mark_checked() -> None:
    """Declares that updates without an average have been compared, or that Keras's fit does so."""
    global _updates_checked
    _updates_checked = True


def warn_if_nothing_was_averaged() -> None:
    """At exit, rank 0 warns if the script may have trained without an Apply op.

    Not if it has called an allreduce or allgather outside of graphs, and so may have averaged by
    itself, nor after mark_checked().
    """
    if group.rank != 0 or group.size == 1 or collectives.combined_by_script or _updates_checked:
        return
    if c_api.stats()["gradients"] == 0:
        log.say(
            "no optimizer op was run, so no gradient was averaged. If this script trains, its "
            f"{group.size} ranks have trained {group.size} models: apply gradients with an "
            "optimizer of Keras or tf.compat.v1.train, or average them with "
            "tf.mpi.allreduce(gradient)"
        )
