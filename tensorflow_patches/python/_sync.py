"""Start in the same state: before the first step, rank 0's variables are every rank's.

Three places where a first step begins: a Session run that reaches an Apply op, a call of a traced
function that holds one, and an eager GradientTape. At each, the ranks exchange what they have and
bring in step what all of them have; a variable that only some ranks have stays as it is. What none
of this reaches (raw ops, variables made inside the first eager tape) is brought in step by the
kernel itself, at the variable's first Apply.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import itertools
import json
import threading
from collections.abc import Callable, Iterable
from typing import Any

from tensorflow.mpi import _bootstrap, _collectives, _hooks, _lib, _naming

# Variables that hold the state of random number generators: they stay different on purpose, so that
# ranks draw different dropout masks and augmentations, as one process does for different samples.
_RANDOM_STATE = ("StateVar", "seed_generator_state")

_busy = threading.local()  # a sync reads variables through the very calls that are hooked
_counter = itertools.count()  # of syncs of functions and tapes, in program order
_optimizer_counter = itertools.count()  # of eager optimizers, in the order of their first update
_tape_done = False
_session_numbers = itertools.count(1)
_session_scopes: collections.Counter[str] = collections.Counter()


@dataclasses.dataclass
class State:
    """One variable on this rank: how it is known on all ranks, and how to read and write it."""

    key: str  # name, dtype, shape, and whether it has a value
    read: Callable[[], Any]  # -> numpy array
    write: Callable[[Any], None]
    mark: Callable[[], None]  # tells the kernels that it is in step


def _agreed(label: str, states: list[State]) -> list[State]:
    """The states that every rank has, equally often, in an order that is the same on all ranks."""
    counts = collections.Counter(state.key for state in states)
    everyone = [
        collections.Counter(json.loads(text)) for text in _exchange(label, json.dumps(counts))
    ]
    agreed = {key for key in counts if all(other.get(key) == counts[key] for other in everyone)}
    missing = sorted(set().union(*everyone) - agreed)
    if missing:
        _bootstrap.debug(f"{label}: not on all ranks, left as they are: {', '.join(missing[:10])}")
    by_key: dict[str, list[State]] = collections.defaultdict(list)
    for state in states:
        by_key[state.key].append(state)
    return [state for key in sorted(agreed) for state in by_key[key]]


def _exchange(label: str, text: str) -> list[str]:
    """Every rank's text, by rank."""
    import numpy as np

    data = np.frombuffer(text.encode(), dtype=np.uint8)
    sizes = _collectives.run("allgather", np.array([data.size], np.int64), f"{label} sizes")
    gathered = _collectives.run("allgather", data, f"{label} manifest").tobytes()
    ends = list(itertools.accumulate(int(n) for n in sizes))
    return [gathered[end - n : end].decode() for end, n in zip(ends, sizes, strict=True)]


def _bring_in_step(label: str, states: list[State]) -> None:
    agreed = _agreed(label, states)
    for index, state in enumerate(agreed):
        if not state.key.endswith("empty"):
            value = state.read()
            received = _collectives.run("broadcast", value, f"{label} {index}", root=0)
            if _hooks.rank != 0:
                state.write(received)
        state.mark()
    _bootstrap.debug(f"{label}: {len(agreed)} of {len(states)} variables in step with rank 0")


def _is_random_state(name: str) -> bool:
    return any(word in name for word in _RANDOM_STATE)


# --- Eager variables: functions and tapes ------------------------------------------------------


def _eager_state(handle: Any) -> State | None:
    """None for a resource that is no variable, and for the state of a random generator."""
    from tensorflow.python.framework import dtypes
    from tensorflow.python.ops import gen_resource_variable_ops as raw

    data = getattr(handle, "_handle_data", None)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    container, name = _naming.handle_name(handle)
    debug_name = name.rpartition("/")[0]
    if container != "Anonymous" or _is_random_state(debug_name):
        return None
    dtype = dtypes.as_dtype(data.shape_and_type[0].dtype)
    filled = bool(raw.var_is_initialized_op(handle).numpy())

    def read() -> Any:
        return raw.read_variable_op(handle, dtype).numpy()

    def write(value: Any) -> None:
        raw.assign_variable_op(handle, value)

    def mark() -> None:
        _lib.load().tfmpi_mark_in_step(container.encode(), name.encode(), b"")

    shape = raw.variable_shape(handle).numpy().tolist() if filled else "empty"
    return State(f"{debug_name} {dtype.name} {shape}", read, write, mark)


def _sync_handles(label: str, handles: Iterable[Any]) -> None:
    from tensorflow.python.framework import ops

    _busy.on = True
    try:
        with ops.init_scope():
            # Handle ids grow with creation, so this is the program's order on every rank.
            ordered = sorted(handles, key=_creation)
            states = [state for state in map(_eager_state, ordered) if state is not None]
            _bring_in_step(label, states)
    finally:
        _busy.on = False


def _creation(handle: Any) -> int:
    number = _naming.handle_name(handle)[1].rpartition("/")[2]
    return int(number) if number.isdigit() else -1


_handles_in_step: set[str] = set()


def before_function(graph: Any, captured: Any) -> None:
    """A traced function that trains is about to run."""
    if graph._tf_mpi_in_step or getattr(_busy, "on", False):
        return
    from tensorflow.python.framework import dtypes

    graph._tf_mpi_in_step = True
    trained = {_naming.handle_name(handle)[1] for handle in graph._tf_mpi_trained.values()}
    if trained <= _handles_in_step:
        return
    handles = {id(t): t for t in captured if getattr(t, "dtype", None) == dtypes.resource}
    handles.update(graph._tf_mpi_trained)
    fresh = {i: h for i, h in handles.items() if _naming.handle_name(h)[1] not in _handles_in_step}
    _handles_in_step.update(trained)
    _sync_handles(f"start of function {next(_counter)}", fresh.values())
    _handles_in_step.update(_naming.handle_name(h)[1] for h in fresh.values())


def before_tape() -> None:
    """The first forward pass that is no Session's and trains nothing by itself.

    It brings everything that exists in step.
    """
    global _tape_done
    if _tape_done or getattr(_busy, "on", False):
        return
    _tape_done = True
    _sync_variables(f"start of tape {next(_counter)}", _hooks.live_variables())


def before_optimizer(optimizer: Any, variables: list[Any]) -> None:
    """The first eager update by `optimizer`: its slots and counters exist only now."""
    from tensorflow.python.eager import context

    if getattr(optimizer, "_tf_mpi_in_step", False) or not context.executing_eagerly():
        return
    optimizer._tf_mpi_in_step = True
    label = f"start of optimizer {next(_optimizer_counter)}"
    _sync_variables(label, [*variables, *optimizer.variables()])


def _sync_variables(label: str, variables: list[Any]) -> None:
    handles = {}
    for variable in variables:
        handle = variable.handle
        if hasattr(handle, "_numpy_internal"):
            name = _naming.handle_name(handle)[1]
            if name not in _handles_in_step:
                handles[name] = handle
    _sync_handles(label, handles.values())
    _handles_in_step.update(handles)


# --- Sessions ----------------------------------------------------------------------------------


def session_config(config: Any) -> Any:
    """See _hooks.session_config. A number that the script has chosen itself stays."""
    if config.experimental.HasField("session_metadata"):
        return config
    numbered = type(config)()
    numbered.CopyFrom(config)
    numbered.experimental.session_metadata.name = "tensorflow.mpi"
    numbered.experimental.session_metadata.version = next(_session_numbers)
    return numbered


@dataclasses.dataclass
class _Session:
    """What is known of one Session."""

    seen: set[frozenset[str]] = dataclasses.field(default_factory=set)
    in_step: set[str] = dataclasses.field(default_factory=set)
    scope: str = ""


def before_session_run(session: Any, fetches: Any) -> None:
    """Brings the session's variables in step before its first run that trains."""
    if getattr(_busy, "on", False):
        return
    known: _Session | None = getattr(session, "_tf_mpi_state", None)
    if known is None:
        known = session._tf_mpi_state = _Session()
    names = frozenset(_fetched_names(session.graph, fetches))
    if names in known.seen:
        return
    known.seen.add(names)
    trained = _trained_by(session.graph, names)
    if trained and not trained <= known.in_step:
        _sync_session(session, known, trained)


def _fetched_names(graph: Any, fetches: Any) -> list[str]:
    from tensorflow.python.util import nest

    names = []
    for fetch in nest.flatten(fetches, expand_composites=True):
        try:
            element = graph.as_graph_element(fetch, allow_tensor=True, allow_operation=True)
        except (TypeError, ValueError, KeyError):
            continue  # the session itself will say what is wrong with it
        names.append(element.op.name if hasattr(element, "op") else element.name)
    return names


def _trained_by(graph: Any, names: Iterable[str]) -> set[str]:
    """The variables and slots that computing these operations trains."""
    seen = set()
    todo = [graph.get_operation_by_name(name) for name in names]
    trained: set[str] = set()
    while todo:
        op = todo.pop()
        if op in seen:
            continue
        seen.add(op)
        todo.extend(tensor.op for tensor in op.inputs)
        todo.extend(op.control_inputs)
        if op.type in _hooks.apply_ops:
            trained.update(_state_name(t.op) for t in op.inputs if _is_state(t))
        elif any(attr.HasField("func") for attr in op.node_def.attr.values()):
            # A function or a loop: whatever it is handed may be trained inside.
            trained.update(_state_name(t.op) for t in op.inputs if _is_state(t))
    return trained


def _is_state(tensor: Any) -> bool:
    from tensorflow.python.framework import dtypes

    return bool(tensor.dtype._is_ref_dtype) or (
        tensor.dtype == dtypes.resource and tensor.op.type == "VarHandleOp"
    )


def _state_name(op: Any) -> str:
    if op.type == "VarHandleOp":
        shared = op.get_attr("shared_name").decode()
        return shared or str(op.name)
    return str(op.name)


def _sync_session(session: Any, known: _Session, trained: set[str]) -> None:
    if not known.scope:
        digest = hashlib.sha256("\n".join(sorted(trained)).encode()).hexdigest()[:6]
        known.scope = f"{digest}.{_session_scopes[digest]}"
        _session_scopes[digest] += 1
        version = session._config.experimental.session_metadata.version
        _lib.load().tfmpi_set_scope(version, known.scope.encode())
    _busy.on = True
    try:
        variables = {
            name: variable
            for name, variable in _variables_of(session.graph).items()
            if name not in known.in_step and not _is_random_state(name)
        }
        values = _read_variables(session, variables)
        received: dict[str, Any] = {}
        states = [
            _session_state(name, variable, values.get(name), received, known.scope)
            for name, variable in variables.items()
        ]
        digest = hashlib.sha256("\n".join(sorted(trained)).encode()).hexdigest()[:6]
        _bring_in_step(f"start of session {known.scope} {digest} {len(known.in_step)}", states)
        _write_variables(session, [(variables[name], value) for name, value in received.items()])
        known.in_step.update(trained)
    finally:
        _busy.on = False


def _variables_of(graph: Any) -> dict[str, Any]:
    """By the name that the kernels know."""
    from tensorflow.python.framework import ops

    found = {}
    for collection in (ops.GraphKeys.GLOBAL_VARIABLES, ops.GraphKeys.TRAINABLE_VARIABLES):
        for variable in graph.get_collection(collection):
            if hasattr(variable, "initializer") and hasattr(variable, "op"):
                found[_state_name(variable.op)] = variable
    return found


def _session_state(
    name: str, variable: Any, value: Any, received: dict[str, Any], scope: str
) -> State:
    """`value` is None for a variable that has none. What rank 0 has goes to `received`."""
    shape = "empty" if value is None else list(value.shape)
    return State(
        f"{name} {variable.dtype.base_dtype.name} {shape}",
        lambda: value,
        lambda new: received.__setitem__(name, new),
        lambda: _lib.load().tfmpi_mark_in_step(b"", name.encode(), scope.encode()),
    )


# A session takes a pass over the whole graph for each new set of fetches, so variables are read and
# written together.


def _read_variables(session: Any, variables: dict[str, Any]) -> dict[str, Any]:
    """Their values; a variable that has none is left out."""
    from tensorflow.python.framework import errors

    def tensor(variable: Any) -> Any:
        element = getattr(variable, "_graph_element", None)
        return element if element is not None else variable._snapshot

    try:
        found: dict[str, Any] = session.run({name: tensor(v) for name, v in variables.items()})
        return found
    except errors.FailedPreconditionError:
        names = list(variables)
        if len(names) == 1:
            return {}
        middle = len(names) // 2
        parts = (
            {name: variables[name] for name in half} for half in (names[:middle], names[middle:])
        )
        return {name: v for part in parts for name, v in _read_variables(session, part).items()}


def _write_variables(session: Any, waiting: list[tuple[Any, Any]]) -> None:
    """By the variables' own initializers with other values: adds nothing to the graph."""
    while waiting:
        feed: dict[str, Any] = {}
        initializers, others = [], []
        for variable, value in waiting:
            initial = variable.initializer.inputs[1].name
            if initial in feed:  # made from one tensor, so they cannot be fed together
                others.append((variable, value))
            else:
                feed[initial] = value
                initializers.append(variable.initializer)
        session.run(initializers, feed)
        waiting = others


def warn_if_nothing_was_averaged() -> None:
    """At exit, rank 0: a script that trained, if it did, by other ways than Apply ops.

    One that calls collectives of its own knows what it does.
    """
    if _hooks.rank != 0 or _hooks.size == 1 or _hooks.asked:
        return
    if _lib.stats()["gradients"] == 0:
        _bootstrap.say(
            "no optimizer op was run, so no gradient was averaged. If this script trains, its "
            f"{_hooks.size} ranks have trained {_hooks.size} models: apply gradients with an "
            "optimizer of tf.compat.v1.train, or average them with tf.mpi.allreduce(gradient)"
        )
