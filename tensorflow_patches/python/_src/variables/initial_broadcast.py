"""Start in the same state: before the first step, rank 0's variables are every rank's.

Three places where a first step begins: a Session run that reaches an Apply op, a call of a traced
function that holds one, and an eager GradientTape. At each, the ranks exchange what they have and
synchronize what all of them have; a variable that only some ranks have stays as it is. What none
of this reaches (raw ops, variables made inside the first eager tape) is synchronized by the
kernel itself, at the variable's first Apply.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterable
from typing import Any

from tensorflow.mpi._src.lifecycle import ends
from tensorflow.mpi._src.runtime import c_api, threads
from tensorflow.mpi._src.variables import large_variables, naming, replica_check, states, unwrap

busy = threading.local()  # a sync reads variables through the very calls that are hooked
_counter = itertools.count()  # of syncs of functions and tapes, in program order
_optimizer_counter = itertools.count()  # of eager optimizers, in the order of their first update
_variable_counter = itertools.count()  # of variables that a step makes, in program order
_lock = threading.Lock()
_created = itertools.count()
# Eager variables that exist, in creation order; to be changed and looped over under _lock. Each
# assign_add of eager code makes one that is gone at once.
_variables: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_tape_done = False
_generation = 1  # what was synchronized in an earlier one must be synchronized again
_changed: str | None = None  # what this rank did to its variables since it was last synchronized


def variable_created(variable: Any) -> None:
    """See hooks.variable_created."""
    if not variable._in_graph_mode:
        with _lock:
            _variables[next(_created)] = variable


def variable_starts(variable: Any) -> None:
    """Synchronizes a variable that all ranks have just made, before anything reads it."""
    _sync_variables(f"start of variable {next(_variable_counter)}", [variable])


def _live_variables() -> list[Any]:
    """The eager variables that still exist, in creation order."""
    with _lock:
        return list(_variables.values())


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
    from tensorflow.python.eager import context

    ends.thread_trains()
    if context.executing_eagerly():
        _before_tape()
    else:
        naming.mark_tape()


def checkpoint_restored(checkpoint: Any, path: Any) -> None:
    """See hooks.checkpoint_restored.

    In a graph this says nothing yet, and Sessions synchronize what they train. Variables that do
    not exist yet are new, and are synchronized as such; so are those of a SavedModel.
    """
    from tensorflow.python.checkpoint import util
    from tensorflow.python.eager import context

    if path is not None and context.executing_eagerly():
        found = util.list_objects(checkpoint._saver._graph_view)
        state_changed(f"restore({str(path)!r})", found)


def _sync_handles(label: str, handles: Iterable[Any], trained: Iterable[Any] = ()) -> bool:
    """Synchronizes `handles`; returns whether that is done, and notes it then.

    It is not where one has no value on some rank: a function makes it in its first call.
    `trained` are those of `handles` that are known to be trained. They are matched among
    themselves, so that another variable of the same name, dtype and shape that only one rank has
    cannot be taken for one of them.
    """
    from tensorflow.python.framework import ops

    with threads.inside(busy, on=True), ops.init_scope():
        # Handle ids grow with creation, so this is the program's order on every rank.
        ordered = sorted(handles, key=states.creation)
        roles = {id(handle): "trained" for handle in trained}
        found = [states.of_handle(handle, roles.get(id(handle), "other")) for handle in ordered]
        late = sum(state is None and states.is_uninitialized(handle)
                   for handle, state in zip(ordered, found))  # fmt: skip
        known = [state for state in found if state is not None]
        complete = states.synchronize(label, known, late)
        if complete:
            _synchronized_handles.update(naming.handle_name(handle)[1] for handle in ordered)
    return complete


_synchronized_handles: set[str] = set()


def _before_function(graph: Any, captured: Any) -> None:
    """A traced function that trains is about to run."""
    if getattr(busy, "on", False):
        return
    if graph._tf_mpi_synchronized != _generation:
        generation = _generation
        if _sync_function(graph, captured):
            graph._tf_mpi_synchronized = generation
        graph._tf_mpi_replicas = _replicas(graph._tf_mpi_trained.values())
    _compare_replicas(graph._tf_mpi_replicas)


def _replicas(handles: Iterable[Any]) -> tuple[Any, dict[str, Any]]:
    """Those of `handles` that all ranks have: what replica_check knows of them, and by name."""
    found = {
        c_api.variable_name(*naming.handle_name(handle)): handle
        for handle in handles
        if naming.handle_name(handle)[1] in states.on_all_ranks
    }
    return replica_check.of(list(found)), found


def _compare_replicas(known: tuple[Any, dict[str, Any]]) -> None:
    """A step is about to train what _replicas has returned."""
    replicas, handles = known
    if replicas is not None:
        replica_check.before_step(
            replicas, lambda: [large_variables.view(handles[name]) for name in replicas.names]
        )


def _sync_function(graph: Any, captured: Any) -> bool:
    """Whether it has nothing left to synchronize."""
    from tensorflow.python.framework import dtypes

    trained = {naming.handle_name(handle)[1] for handle in graph._tf_mpi_trained.values()}
    if trained <= _synchronized_handles:
        return True
    handles = {id(t): t for t in captured if getattr(t, "dtype", None) == dtypes.resource}
    handles.update(graph._tf_mpi_trained)
    fresh = {
        i: h for i, h in handles.items() if naming.handle_name(h)[1] not in _synchronized_handles
    }
    label = f"start of function {next(_counter)}"
    return _sync_handles(label, fresh.values(), graph._tf_mpi_trained.values())


def _before_tape() -> None:
    """The first forward pass that is no Session's and trains nothing by itself.

    It synchronizes everything that exists.
    """
    global _tape_done
    if _tape_done or getattr(busy, "on", False):
        return
    _tape_done = True
    _sync_variables(f"start of tape {next(_counter)}", _live_variables())


def before_optimizer(optimizer: Any, variables: list[Any]) -> None:
    """See hooks.optimizer_ready. An eager optimizer's slots and counters exist only now."""
    from tensorflow.python.eager import context

    if not context.executing_eagerly():
        return
    if getattr(optimizer, "_tf_mpi_synchronized", 0) != _generation:
        optimizer._tf_mpi_synchronized = _generation
        label = f"start of optimizer {next(_optimizer_counter)}"
        _sync_variables(label, [*variables, *optimizer.variables()])
    _compare_eagerly(optimizer, variables)


def _compare_eagerly(optimizer: Any, variables: list[Any]) -> None:
    """An eager update of `variables` is about to be made."""
    handles = [getattr(variable, "handle", None) for variable in variables]
    known, of = _eager_replicas.get(optimizer, (None, []))
    if known is None or of != list(map(id, handles)):
        known = _replicas(handle for handle in handles if hasattr(handle, "_numpy_internal"))
        _eager_replicas[optimizer] = (known, list(map(id, handles)))
    _compare_replicas(known)


_eager_replicas: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def before_keras_optimizer(optimizer: Any, variables: list[Any]) -> None:
    """An eager update of `variables` by a Keras optimizer: its first, or the first after a restore.

    A graph's first run is _before_function's.
    """
    if getattr(busy, "on", False):
        return
    if _keras_optimizers.get(optimizer) != _generation:
        _keras_optimizers[optimizer] = _generation
        label = f"start of optimizer {next(_optimizer_counter)}"
        _sync_variables(label, [*variables, *optimizer_variables(optimizer)])
    _compare_eagerly(optimizer, variables)


_keras_optimizers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def optimizer_variables(optimizer: Any) -> list[Any]:
    """Slots and counters of a Keras optimizer, as far as they exist."""
    found = getattr(optimizer, "variables", ())
    return list(found() if callable(found) else found)


def state_changed(what: str, restored: Iterable[Any] | None = None) -> None:
    """This rank's variables were restored (`what`: by which call), so ranks may differ.

    They are synchronized again before the next step, which is a meeting of all ranks. A restore on
    some ranks only is safe before a `fit`, which asks all ranks; a loop of the script's own must
    restore on all ranks.

    Args:
      what: for messages.
      restored: what was restored: tf.Variables, Keras's, other objects. If none of them was
        synchronized yet, their first step is still to come and does so; a restore on some ranks
        only is safe then.
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
    """What this rank did to its variables, if that is not synchronized yet."""
    if _changed is None and c_api.load().tfmpi_missed():
        return "waited while the others trained"
    return _changed


def _forget() -> None:
    global _generation, _tape_done
    _generation += 1
    _tape_done = False
    _synchronized_handles.clear()


def before_model_runs(label: str, variables: list[Any], changed_anywhere: bool) -> None:
    """All ranks begin to train or to use a model: synchronizes what is not, or all of it.

    Args:
      label: under which the ranks meet.
      variables: of the model and its optimizer.
      changed_anywhere: a rank has restored some, so that all are compared.
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
