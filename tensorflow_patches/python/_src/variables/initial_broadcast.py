"""The initial broadcast: before the first step, all ranks get rank 0's values of the variables.

A first step begins with a Session run that trains (compat_v1/sessions.py), a call of a traced
function that trains or has a tape, an eager GradientTape, an optimizer's first eager update, or
Keras's fit. At each of these, the ranks exchange lists of their variables, and synchronize those
that all ranks have; a variable that only some ranks have stays as it is. Variables that none of
these covers (updated by raw ops, or created inside the first eager tape) are synchronized by the
kernel itself, at their first Apply op.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterable
from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.lifecycle import ends
from tensorflow.mpi._src.runtime import c_api, threads
from tensorflow.mpi._src.variables import large_variables, naming, replica_check, states, unwrap

busy = threading.local()  # set during a sync, which reads variables through hooked calls
_counter = itertools.count()  # syncs of functions and tapes, in program order
_optimizer_counter = itertools.count()  # eager optimizers, in the order of their first update
_variable_counter = itertools.count()  # variables that a step creates, in program order
_lock = threading.Lock()
_creation_counter = itertools.count()
# Existing eager variables in creation order; change and iterate under _lock. Each eager assign_add
# creates one that is deleted immediately.
_variables: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_synchronized_handles: set[str] = set()  # names of handles, in this generation
# By optimizer: the generation in which its variables were last synchronized; its _replicas, with
# the ids of their handles.
_synchronized_optimizers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_eager_replicas: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
_generation = 1  # variables synchronized in an earlier generation are synchronized again
_tape_done = False  # whether _before_tape has synchronized all variables in this generation
_changed: str | None = None  # how this rank has changed its variables since the last sync


def variable_created(variable: Any) -> None:
    """Called for each new variable (own_rows.variable_created); records it if it is eager."""
    if not variable._in_graph_mode:
        with _lock:
            _variables[next(_creation_counter)] = variable


def sync_new_variable(variable: Any) -> None:
    """Synchronizes a variable that all ranks have just created, before anything reads it."""
    _sync_variables(f"start of variable {next(_variable_counter)}", [variable])


def function_called(graph: Any, captured: Any, eagerly: bool) -> None:
    """See hooks.function_called."""
    if not hasattr(graph, "_tf_mpi_seen"):
        naming.function_first_called(graph, captured)
    trains, has_tape = hasattr(graph, "_tf_mpi_trained"), hasattr(graph, "_tf_mpi_tape")
    if not (trains or has_tape):
        return
    if not eagerly:
        naming.function_nested(graph)
    elif trains:
        ends.thread_trains()
        _before_function(graph, captured)
    else:
        _before_tape()


def tape_entered() -> None:
    """See hooks.tape_entered."""
    ends.thread_trains()
    if tf.executing_eagerly():
        _before_tape()
    else:
        naming.mark_tape()


def checkpoint_restored(checkpoint: Any, path: Any) -> None:
    """See hooks.checkpoint_restored.

    Does nothing in a graph, because Sessions synchronize the variables that they train. Variables
    that are created later, and those of a SavedModel, are synchronized as new ones.
    """
    from tensorflow.python.checkpoint import util

    if path is not None and tf.executing_eagerly():
        restored = util.list_objects(checkpoint._saver._graph_view)
        state_changed(f"restore({str(path)!r})", restored)


def _sync_handles(label: str, handles: Iterable[Any], trained: Iterable[Any] = ()) -> bool:
    """Synchronizes `handles`; returns whether that is complete, and if so records them.

    It is not complete if a variable has no value on some rank, because a function initializes it in
    its first call. `trained`: those of `handles` that are known to be trained. They are matched
    separately, so that a variable of the same name, dtype and shape that only one rank has cannot
    be mistaken for one of them.
    """
    with threads.inside(busy, on=True), tf.init_scope():
        # Handle ids increase with creation, so this is program order on every rank.
        ordered = sorted(handles, key=states.creation_number)
        roles = {id(handle): "trained" for handle in trained}
        found = [states.state_of(handle, roles.get(id(handle), "other")) for handle in ordered]
        uninitialized = sum(state is None and states.is_uninitialized(handle)
                            for handle, state in zip(ordered, found))  # fmt: skip
        known = [state for state in found if state is not None]
        complete = states.synchronize(label, known, uninitialized)
        if complete:
            _synchronized_handles.update(naming.handle_name(handle)[1] for handle in ordered)
    return complete


def _before_function(graph: Any, captured: Any) -> None:
    """Called when eager code is about to run a traced function that trains."""
    if getattr(busy, "on", False):
        return
    if graph._tf_mpi_synchronized != _generation:
        generation = _generation
        if _sync_function(graph, captured):
            graph._tf_mpi_synchronized = generation
        graph._tf_mpi_replicas = _replicas(graph._tf_mpi_trained.values())
    _compare_replicas(*graph._tf_mpi_replicas)


def _replicas(handles: Iterable[Any]) -> tuple[Any, dict[str, Any]]:
    """(Replicas (replica_check.py) of those handles that all ranks have, these handles by name)."""
    found = {
        c_api.variable_name(*naming.handle_name(handle)): handle
        for handle in handles
        if naming.handle_name(handle)[1] in states.on_all_ranks
    }
    return replica_check.replicas_of(list(found)), found


def _compare_replicas(replicas: Any, handles: dict[str, Any]) -> None:
    """Called before a step that trains these variables; the arguments are a result of _replicas."""
    if replicas is not None:
        replica_check.before_step(
            replicas, lambda: [large_variables.view(handles[name]) for name in replicas.names]
        )


def _sync_function(graph: Any, captured: Any) -> bool:
    """Synchronizes the variables of a function; returns whether that is complete."""
    trained = {naming.handle_name(handle)[1] for handle in graph._tf_mpi_trained.values()}
    if trained <= _synchronized_handles:
        return True
    handles = {id(t): t for t in captured if getattr(t, "dtype", None) == tf.resource}
    handles.update(graph._tf_mpi_trained)
    fresh = {
        i: h for i, h in handles.items() if naming.handle_name(h)[1] not in _synchronized_handles
    }
    label = f"start of function {next(_counter)}"
    return _sync_handles(label, fresh.values(), graph._tf_mpi_trained.values())


def _before_tape() -> None:
    """Called before an eager tape, or a call of a function that has a tape but does not train.

    The first call in a generation synchronizes all existing variables.
    """
    global _tape_done
    if _tape_done or getattr(busy, "on", False):
        return
    _tape_done = True
    with _lock:
        existing = list(_variables.values())
    _sync_variables(f"start of tape {next(_counter)}", existing)


def before_optimizer(optimizer: Any, variables: list[Any]) -> None:
    """See hooks.optimizer_ready. Only now do an eager optimizer's slots and counters exist."""
    if tf.executing_eagerly():
        before_eager_update(optimizer, variables)


def before_eager_update(optimizer: Any, variables: list[Any]) -> None:
    """Called before an eager update of `variables` by an optimizer of Keras or compat.v1.

    The optimizer's first update, and its first one after a restore, synchronize its variables.
    _before_function does so for updates in graphs.
    """
    if getattr(busy, "on", False):
        return
    if _synchronized_optimizers.get(optimizer) != _generation:
        _synchronized_optimizers[optimizer] = _generation
        label = f"start of optimizer {next(_optimizer_counter)}"
        _sync_variables(label, [*variables, *optimizer_variables(optimizer)])
    _compare_eagerly(optimizer, variables)


def _compare_eagerly(optimizer: Any, variables: list[Any]) -> None:
    handles = [getattr(variable, "handle", None) for variable in variables]
    ids = list(map(id, handles))
    known, ids_then = _eager_replicas.get(optimizer, (None, []))
    if known is None or ids_then != ids:
        known = _replicas(handle for handle in handles if hasattr(handle, "_numpy_internal"))
        _eager_replicas[optimizer] = (known, ids)
    _compare_replicas(*known)


def optimizer_variables(optimizer: Any) -> list[Any]:
    """The existing slots and counters of an optimizer of Keras or compat.v1."""
    found = getattr(optimizer, "variables", ())
    return list(found() if callable(found) else found)


def state_changed(what: str, restored: Iterable[Any] | None = None) -> None:
    """Notes that this rank's variables were restored, so that ranks may differ.

    All ranks synchronize them again before the next step. A restore on some ranks only is safe
    before `fit`, which asks all ranks; a custom loop must restore on all ranks.

    Args:
      what: the call that restored them, for messages.
      restored: the restored objects: tf.Variables, Keras variables and others. If none of them has
        been synchronized yet, their first step will do so, and a restore on some ranks only is
        safe.
    """
    global _changed
    if restored is not None and not any(map(_is_synchronized, restored)):
        return
    _changed = what
    _forget()


def _is_synchronized(variable: Any) -> bool:
    handle = getattr(unwrap.tf_variable(variable), "handle", None)
    if handle is None or not hasattr(handle, "_numpy_internal"):
        return False
    return naming.handle_name(handle)[1] in _synchronized_handles


def changed() -> str | None:
    """What has changed this rank's variables since they were last synchronized; None if nothing."""
    if _changed is None and c_api.load().tfmpi_missed():
        return "waited while the others trained"
    return _changed


def _forget() -> None:
    global _generation, _tape_done
    _generation += 1
    _tape_done = False
    _synchronized_handles.clear()


def before_model_runs(label: str, variables: list[Any], changed_anywhere: bool) -> None:
    """Called when all ranks begin to train or use a model; synchronizes its variables.

    Args:
      label: identifies the exchange on all ranks.
      variables: those of the model and its optimizer.
      changed_anywhere: whether changed() is not None on any rank; then all are synchronized again,
        otherwise only those that have not been.
    """
    global _changed
    if changed_anywhere:
        _forget()
    _sync_variables(label, variables)
    _changed = None
    c_api.load().tfmpi_caught_up()


def _sync_variables(label: str, variables: list[Any]) -> None:
    handles = {}
    for variable in variables:
        handle = getattr(variable, "handle", None)
        if handle is not None and hasattr(handle, "_numpy_internal"):
            name = naming.handle_name(handle)[1]
            if name not in _synchronized_handles:
                handles[name] = handle
    _sync_handles(label, handles.values())
