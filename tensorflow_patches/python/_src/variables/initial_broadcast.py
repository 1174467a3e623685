"""Start in the same state: before the first step, rank 0's variables are every rank's.

Three places where a first step begins: a Session run that reaches an Apply op, a call of a traced
function that holds one, and an eager GradientTape. At each, the ranks exchange what they have and
synchronize what all of them have; a variable that only some ranks have stays as it is. What none
of this reaches (raw ops, variables made inside the first eager tape) is synchronized by the
kernel itself, at the variable's first Apply.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from tensorflow.mpi._src.runtime import c_api, control_plane, ends, hooks, log
from tensorflow.mpi._src.variables import large_variables, naming

# Variables that hold the state of random number generators: they stay different on purpose, so that
# ranks draw different dropout masks and augmentations, as one process does for different samples.
_RANDOM_STATE = ("StateVar", "seed_generator_state")

busy = threading.local()  # a sync reads variables through the very calls that are hooked
_counter = itertools.count()  # of syncs of functions and tapes, in program order
_optimizer_counter = itertools.count()  # of eager optimizers, in the order of their first update
_lock = threading.Lock()
_variables: list[weakref.ref[Any]] = []  # eager variables, in creation order; guarded by _lock
_tape_done = False
_generation = 1  # what was synchronized in an earlier one must be synchronized again
_changed: str | None = None  # what this rank did to its variables since it was last synchronized


def install() -> None:
    """Called once, when TensorFlow's libraries are loaded."""
    hooks.fill(
        variable_created=_variable_created,
        function_called=_function_called,
        tape_entered=_tape_entered,
        optimizer_ready=_before_optimizer,
        checkpoint_restored=_checkpoint_restored,
    )


def _variable_created(variable: Any) -> None:
    """See hooks.variable_created."""
    if not variable._in_graph_mode:
        with _lock:
            _variables.append(weakref.ref(variable))


def _live_variables() -> list[Any]:
    """The eager variables that still exist, in creation order."""
    with _lock:
        alive = [(ref, ref()) for ref in _variables]
        _variables[:] = [ref for ref, variable in alive if variable is not None]
    return [variable for _, variable in alive if variable is not None]


def _function_called(graph: Any, captured: Any, eagerly: bool) -> None:
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


def _tape_entered() -> None:
    """See hooks.tape_entered."""
    from tensorflow.python.eager import context

    ends.thread_trains()
    if context.executing_eagerly():
        _before_tape()
    else:
        naming.mark_tape()


def _checkpoint_restored(checkpoint: Any, path: Any) -> None:
    """See hooks.checkpoint_restored.

    In a graph this says nothing yet, and Sessions synchronize what they train. Variables that do
    not exist yet are new, and are synchronized as such; so are those of a SavedModel.
    """
    from tensorflow.python.checkpoint import util
    from tensorflow.python.eager import context

    if path is not None and context.executing_eagerly():
        found = util.list_objects(checkpoint._saver._graph_view)
        state_changed(f"restore({str(path)!r})", found)


@dataclasses.dataclass
class State:
    """One variable that has a value here: how all ranks know it, and how to read and write it."""

    key: str  # name, dtype, shape
    read: Callable[[], Any]  # -> numpy array
    write: Callable[[Any], None]
    mark: Callable[[], None]  # tells the kernels that it is synchronized
    # A variable that is not to be read or written as a whole.
    large: large_variables.EagerVariable | large_variables.FetchedVariable | None = None


def synchronize(label: str, states: list[State]) -> None:
    """Rank 0's values of the variables that every rank has become every rank's.

    Only what differs travels. Every rank must call it, each with what it has.
    """
    values = [None if state.large is not None else state.read() for state in states]
    mine: dict[str, list[int]] = collections.defaultdict(list)
    places: dict[str, list[int]] = collections.defaultdict(list)
    for index, (state, value) in enumerate(zip(states, values)):
        digest = control_plane.digest(value) if state.large is None else state.large.digest()
        mine[state.key].append(digest)
        places[state.key].append(index)
    everyone = control_plane.headers(f"{label} manifest", mine)
    agreed = sorted(
        key
        for key, digests in mine.items()
        if all(len(theirs.get(key, ())) == len(digests) for theirs in everyone)
    )
    missing = sorted(set().union(*everyone) - set(agreed))
    if missing:
        log.debug(f"{label}: not on all ranks, left as they are: {', '.join(missing[:10])}")
    differing = [
        places[key][n]
        for key in agreed
        for n in range(len(mine[key]))
        if any(theirs[key][n] != everyone[0][key][n] for theirs in everyone)
    ]
    small = [index for index in differing if states[index].large is None]
    received = control_plane.broadcast_arrays(label, [values[index] for index in small])
    if hooks.rank != 0:
        for index, value in zip(small, received):
            states[index].write(value)
    large = [states[index] for index in differing if states[index].large is not None]
    for number, state in enumerate(large):
        assert state.large is not None
        state.large.receive(f"{label}: large {number}")
    for key in agreed:
        for index in places[key]:
            states[index].mark()
    log.debug(
        f"{label}: {sum(len(mine[key]) for key in agreed)} of {len(states)} variables "
        f"synchronized with rank 0, {len(differing)} of them had differed"
    )


def is_random_state(name: str) -> bool:
    return any(word in name for word in _RANDOM_STATE)


def _eager_state(handle: Any, role: str) -> State | None:
    """None for what is no variable, has no value, or is the state of a random generator."""
    from tensorflow.python.framework import dtypes
    from tensorflow.python.ops import gen_resource_variable_ops as raw

    data = getattr(handle, "_handle_data", None)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    container, name = naming.handle_name(handle)
    debug_name = name.rpartition("/")[0]
    if container != "Anonymous" or is_random_state(debug_name):
        return None
    dtype = dtypes.as_dtype(data.shape_and_type[0].dtype)
    if dtype in (dtypes.string, dtypes.variant, dtypes.resource):
        return None
    if not raw.var_is_initialized_op(handle).numpy():
        return None

    def read() -> Any:
        return raw.read_variable_op(handle, dtype).numpy()

    def write(value: Any) -> None:
        raw.assign_variable_op(handle, value)

    def mark() -> None:
        c_api.load().tfmpi_mark_synchronized(container.encode(), name.encode(), b"")

    shape = raw.variable_shape(handle).numpy().tolist()
    large = (
        large_variables.EagerVariable(handle) if large_variables.is_large(dtype, shape) else None
    )
    return State(f"{debug_name} {role} {dtype.name} {shape}", read, write, mark, large)


def _sync_handles(label: str, handles: Iterable[Any], trained: Iterable[Any] = ()) -> None:
    """`trained` are those of `handles` that are known to be trained.

    They are matched among themselves, so that another variable of the same name, dtype and shape
    that only one rank has cannot be taken for one of them.
    """
    from tensorflow.python.framework import ops

    busy.on = True
    try:
        with ops.init_scope():
            # Handle ids grow with creation, so this is the program's order on every rank.
            ordered = sorted(handles, key=_creation)
            roles = {id(handle): "trained" for handle in trained}
            found = [_eager_state(handle, roles.get(id(handle), "other")) for handle in ordered]
            states = [state for state in found if state is not None]
            synchronize(label, states)
    finally:
        busy.on = False


def _creation(handle: Any) -> int:
    number = naming.handle_name(handle)[1].rpartition("/")[2]
    return int(number) if number.isdigit() else -1


_synchronized_handles: set[str] = set()


def _before_function(graph: Any, captured: Any) -> None:
    """A traced function that trains is about to run."""
    if graph._tf_mpi_synchronized == _generation or getattr(busy, "on", False):
        return
    from tensorflow.python.framework import dtypes

    graph._tf_mpi_synchronized = _generation
    trained = {naming.handle_name(handle)[1] for handle in graph._tf_mpi_trained.values()}
    if trained <= _synchronized_handles:
        return
    handles = {id(t): t for t in captured if getattr(t, "dtype", None) == dtypes.resource}
    handles.update(graph._tf_mpi_trained)
    fresh = {
        i: h for i, h in handles.items() if naming.handle_name(h)[1] not in _synchronized_handles
    }
    _synchronized_handles.update(trained)
    label = f"start of function {next(_counter)}"
    _sync_handles(label, fresh.values(), graph._tf_mpi_trained.values())
    _synchronized_handles.update(naming.handle_name(h)[1] for h in fresh.values())


def _before_tape() -> None:
    """The first forward pass that is no Session's and trains nothing by itself.

    It synchronizes everything that exists.
    """
    global _tape_done
    if _tape_done or getattr(busy, "on", False):
        return
    _tape_done = True
    _sync_variables(f"start of tape {next(_counter)}", _live_variables())


def _before_optimizer(optimizer: Any, variables: list[Any]) -> None:
    """See hooks.optimizer_ready. An eager optimizer's slots and counters exist only now."""
    from tensorflow.python.eager import context

    if (
        getattr(optimizer, "_tf_mpi_synchronized", 0) == _generation
        or not context.executing_eagerly()
    ):
        return
    optimizer._tf_mpi_synchronized = _generation
    label = f"start of optimizer {next(_optimizer_counter)}"
    _sync_variables(label, [*variables, *optimizer.variables()])


def before_keras_optimizer(optimizer: Any, variables: list[Any]) -> None:
    """An eager update of `variables` by a Keras optimizer: its first, or the first after a restore.

    A graph's first run is _before_function's.
    """
    if getattr(busy, "on", False) or _keras_optimizers.get(optimizer) == _generation:
        return
    _keras_optimizers[optimizer] = _generation
    label = f"start of optimizer {next(_optimizer_counter)}"
    _sync_variables(label, [*variables, *optimizer_variables(optimizer)])


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
    variable = getattr(variable, "value", variable) if hasattr(variable, "path") else variable
    handle = getattr(variable, "handle", None)
    if handle is None or not hasattr(handle, "_numpy_internal"):
        return False
    return naming.handle_name(handle)[1] in _synchronized_handles


def changed() -> str | None:
    """What this rank did to its variables, if that is not synchronized yet."""
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


def _sync_variables(label: str, variables: list[Any]) -> None:
    handles = {}
    for variable in variables:
        handle = getattr(variable, "handle", None)
        if handle is not None and hasattr(handle, "_numpy_internal"):
            name = naming.handle_name(handle)[1]
            if name not in _synchronized_handles:
                handles[name] = handle
    _sync_handles(label, handles.values())
    _synchronized_handles.update(handles)


def warn_if_nothing_was_averaged() -> None:
    """At exit, rank 0: a script that trained, if it did, by other ways than Apply ops.

    One that calls collectives of its own knows what it does. Keras's fit checks by itself, and
    evaluate that the ranks hold one model.
    """
    if hooks.rank != 0 or hooks.size == 1 or hooks.asked or hooks.used_keras:
        return
    if hooks.updated_alike:
        return
    if c_api.stats()["gradients"] == 0:
        log.say(
            "no optimizer op was run, so no gradient was averaged. If this script trains, its "
            f"{hooks.size} ranks have trained {hooks.size} models: apply gradients with an "
            "optimizer of Keras or tf.compat.v1.train, or average them with "
            "tf.mpi.allreduce(gradient)"
        )
