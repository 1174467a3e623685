"""Sessions: a number and a scope for each, and rank 0's variables before its first training run.

Two sessions may have variables of the same name, so exchanges use scope and name. See
variables/initial_broadcast.py for what is synchronized, and runtime/hooks.py for the patches
that call this.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import itertools
import os
import sys
from collections.abc import Iterable
from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.average.carrier import averaged_names
from tensorflow.mpi._src.gpu import gpus
from tensorflow.mpi._src.presence import presence
from tensorflow.mpi._src.runtime import c_api, hooks, threads
from tensorflow.mpi._src.variables import large_variables, naming, replica_check
from tensorflow.mpi._src.variables.initial_broadcast import busy
from tensorflow.mpi._src.variables.naming import state_name
from tensorflow.mpi._src.variables.states import State, is_random_state, synchronize

_session_numbers = itertools.count(1)
_graph_numbers: collections.Counter[str] = collections.Counter()  # graphs so far, by _digest


def session_config(graph: Any, config: Any) -> Any:
    """See hooks.session_config. A value that the script has set is kept."""
    if not hasattr(graph, "_tf_mpi_identity"):
        trained = {name for op in graph.get_operations() for name in _trained_by_op(op)}
        _identify(graph, trained, _calling_line())
    keeps_number = config.experimental.HasField("session_metadata")
    keeps_gpus = config.gpu_options.visible_device_list or not gpus.visible_list()
    if keeps_number and keeps_gpus:
        return config
    copy = type(config)()
    copy.CopyFrom(config)
    if not keeps_gpus:
        copy.gpu_options.visible_device_list = gpus.visible_list()
    if not keeps_number:
        copy.experimental.session_metadata.name = "tensorflow.mpi"
        copy.experimental.session_metadata.version = next(_session_numbers)
    return copy


def _identify(graph: Any, trained: set[str], line: str) -> None:
    """Gives `graph`, if it trains, a name that is the same on all ranks.

    The name is made from the variables that it trains and the line of the script that created its
    first Session, so that a graph that only one rank has does not change other names. Graphs of one
    line are numbered as their Sessions are created, and not as these first run: with threads the
    order of runs may differ by rank. Only a graph that does not train yet when its Session is
    created is named at the first run that trains, without a line.
    """
    if trained:
        digest = _digest(trained | {line})
        graph._tf_mpi_identity = f"{digest}.{_graph_numbers[digest]}"
        graph._tf_mpi_scopes = itertools.count()
        _graph_numbers[digest] += 1


def _calling_line() -> str:
    """The innermost line of the script, outside of TensorFlow: "train.py:120"."""
    tensorflow = os.path.dirname(sys.modules["tensorflow"].__file__ or "")
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(tensorflow):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def _digest(names: set[str]) -> str:
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:6]


@dataclasses.dataclass
class _Session:
    """The state of one Session."""

    # By fetches: the Replicas of the variables that they train and all ranks have.
    replicas: dict[frozenset[str], Any] = dataclasses.field(default_factory=dict)
    # By fetches: whether they train any variable.
    trains: dict[frozenset[str], bool] = dataclasses.field(default_factory=dict)
    synchronized: set[str] = dataclasses.field(default_factory=set)
    on_all_ranks: set[str] = dataclasses.field(default_factory=set)
    scope: str = ""  # docs/glossary.md; empty before the first run that trains


def before_run(session: Any, fetches: Any) -> None:
    """See hooks.session_run. Before the first run that trains, all ranks get rank 0's values."""
    if getattr(busy, "on", False):
        return
    session.graph._tf_mpi_ran = session.graph.version  # see average/script_gradients.py
    known: _Session | None = getattr(session, "_tf_mpi_state", None)
    if known is None:
        known = session._tf_mpi_state = _Session()
    names = frozenset(_fetched_names(session.graph, fetches))
    if names not in known.replicas:
        trained = _trained_by(session.graph, names)
        if trained and not trained <= known.synchronized:
            _sync_session(session, known, trained)
        compared = (trained & known.on_all_ranks) - _updated_in_any_order(session.graph)
        known.replicas[names] = replica_check.replicas_of([f"{n}@{known.scope}" for n in compared])
        known.trains[names] = bool(trained)
    if known.trains[names]:
        presence.uses()
    replicas = known.replicas[names]
    if replicas is not None:
        replica_check.before_step(replicas, lambda: _values(session, replicas.names))


def _updated_in_any_order(graph: Any) -> set[str]:
    """Variables that several Apply ops update, so that the ranks may differ by rounding."""
    updates = getattr(graph, "_tf_mpi_updates", {}).values()
    return {state_name(ops[0].inputs[0].op) for ops in updates if len(ops) > 1}


def _values(session: Any, names: Iterable[str]) -> list[Any]:
    """The values of these variables, not copied. names: NAME@SCOPE, with the session's scope."""
    variables = _variables_of(session.graph)
    with threads.inside(busy, on=True), large_variables.shared_fetches():
        wanted = {n: variables[n] for n in (name.rpartition("@")[0] for name in names)}
        found = _read_variables(session, wanted)
    return [found[name] for name in wanted]


class ScopeOfRun:
    """Inside, kernels that this thread creates belong to `session`. See hooks.in_session. Does not
    nest: after an inner block the thread has no scope."""

    def __init__(self, session: Any) -> None:
        known: _Session | None = getattr(session, "_tf_mpi_state", None)
        self._scope = known.scope.encode() if known is not None else b""

    def __enter__(self) -> None:
        c_api.load().tfmpi_set_thread_scope(self._scope)

    def __exit__(self, *error: object) -> None:
        # Kernels that are created outside, as by callables (make_callable), get no session's scope.
        c_api.load().tfmpi_set_thread_scope(b"")


def _fetched_names(graph: Any, fetches: Any) -> list[str]:
    from tensorflow.python.client import session

    with graph.as_default():
        try:
            mapper = session._FetchMapper.for_fetch(fetches)
        except (TypeError, ValueError):
            return []  # the session itself raises an error for it
    found = mapper.unique_fetches()
    return [fetch.op.name if hasattr(fetch, "op") else fetch.name for fetch in found]


def _trained_by(graph: Any, names: Iterable[str]) -> set[str]:
    """The variables and slots that running these operations trains."""
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
        trained.update(_trained_by_op(op))
        if naming.calls_functions(op.type) and naming.calls_training(op):
            # A function or a loop that trains: it may train any of its arguments.
            trained.update(state_name(t.op) for t in op.inputs if _is_state(t))
    return trained


def _trained_by_op(op: Any) -> set[str]:
    if op.type == "IdentityN":
        return set(averaged_names(op))  # from compute_gradients: the variables' names
    if op.type not in hooks.apply_ops:
        return set()
    return {state_name(t.op) for t in op.inputs if _is_state(t)}


def _is_state(tensor: Any) -> bool:
    return bool(tensor.dtype._is_ref_dtype) or (
        tensor.dtype == tf.resource and tensor.op.type == "VarHandleOp"
    )


def _sync_session(session: Any, known: _Session, trained: set[str]) -> None:
    """Gives the session a scope, and its variables rank 0's values. Collective."""
    if not known.scope:
        graph = session.graph
        if not hasattr(graph, "_tf_mpi_identity"):  # the Session was created before the Apply ops
            _identify(graph, trained, "")
        known.scope = f"{graph._tf_mpi_identity}.{next(graph._tf_mpi_scopes)}"
        version = session._config.experimental.session_metadata.version
        c_api.load().tfmpi_set_scope(version, known.scope.encode())
    with threads.inside(busy, on=True):
        variables = {
            name: variable
            for name, variable in _variables_of(session.graph).items()
            if name not in known.synchronized and not is_random_state(name)
        }
        digest = _digest(trained)
        label = f"start of session {known.scope} {digest} {len(known.synchronized)}"
        received, empty = _receive_variables(session, label, variables, known)
        _write_variables(session, [(variables[name], value) for name, value in received.items()])
        known.synchronized.update(trained - empty)


def _receive_variables(
    session: Any, label: str, variables: dict[str, Any], known: _Session
) -> tuple[dict[str, Any], set[str]]:
    """(rank 0's values that this rank has yet to write, variables without a value)."""
    received: dict[str, Any] = {}
    with large_variables.shared_fetches():
        values = _read_variables(session, variables)
        states = {
            name: _session_state(name, variables[name], value, received, known)
            for name, value in values.items()
        }
        synchronize(label, list(states.values()))
    for name, state in states.items():
        if (
            isinstance(state.large, large_variables.FetchedVariable)
            and state.large.received is not None
        ):
            received[name] = state.large.received
    return received, variables.keys() - values.keys()


def _variables_of(graph: Any) -> dict[str, Any]:
    """The variables of `graph`, by the name that the kernels use."""
    from tensorflow.python.framework import ops

    unread = (tf.string, tf.variant, tf.resource)  # no gradient changes them
    found = {}
    for collection in (ops.GraphKeys.GLOBAL_VARIABLES, ops.GraphKeys.TRAINABLE_VARIABLES):
        for variable in graph.get_collection(collection):
            if not (hasattr(variable, "initializer") and hasattr(variable, "op")):
                continue
            if variable.dtype.base_dtype not in unread:
                found[state_name(variable.op)] = variable
    return found


def _session_state(
    name: str, variable: Any, value: Any, received: dict[str, Any], known: _Session
) -> State:
    """A variable's state; rank 0's value goes to `received`, or to `State.large`."""

    def mark() -> None:
        scope = known.scope.encode()
        c_api.load().tfmpi_mark_synchronized(b"", name.encode(), scope)
        known.on_all_ranks.add(name)

    dtype, shape = variable.dtype.base_dtype, list(value.shape)
    return State(
        f"{name} {dtype.name} {shape}",
        lambda: value,
        lambda new: received.__setitem__(name, new),
        mark,
        large_variables.FetchedVariable(value) if large_variables.is_large(dtype, shape) else None,
    )


def _read_variables(session: Any, variables: dict[str, Any]) -> dict[str, Any]:
    """The values of variables; without those that have none. Reads all at once if possible, because
    a session processes the whole graph for each new set of fetches."""
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
    """Assigns by feeding the variables' initializers, which adds nothing to the graph."""
    while waiting:
        feed: dict[str, Any] = {}
        initializers, others = [], []
        for variable, value in waiting:
            initial = variable.initializer.inputs[1].name
            if initial in feed:  # they share an initial tensor, so they cannot be fed together
                others.append((variable, value))
            else:
                feed[initial] = value
                initializers.append(variable.initializer)
        session.run(initializers, feed)
        waiting = others
