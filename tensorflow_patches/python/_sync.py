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
import itertools
import json
import threading
from collections.abc import Callable, Iterable
from typing import Any

from tensorflow.mpi import _bootstrap, _collectives, _hooks, _lib, _naming

# Variables that hold the state of random number generators: they stay different on purpose, so that
# ranks draw different dropout masks and augmentations, as one process does for different samples.
_RANDOM_STATE = ("StateVar", "seed_generator_state")

busy = threading.local()  # a sync reads variables through the very calls that are hooked
_counter = itertools.count()  # of syncs of functions and tapes, in program order
_optimizer_counter = itertools.count()  # of eager optimizers, in the order of their first update
_tape_done = False


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


def bring_in_step(label: str, states: list[State]) -> None:
    agreed = _agreed(label, states)
    for index, state in enumerate(agreed):
        if not state.key.endswith("empty"):
            value = state.read()
            received = _collectives.run("broadcast", value, f"{label} {index}", root=0)
            if _hooks.rank != 0:
                state.write(received)
        state.mark()
    _bootstrap.debug(f"{label}: {len(agreed)} of {len(states)} variables in step with rank 0")


def is_random_state(name: str) -> bool:
    return any(word in name for word in _RANDOM_STATE)


def _eager_state(handle: Any, role: str) -> State | None:
    """None for a resource that is no variable, and for the state of a random generator."""
    from tensorflow.python.framework import dtypes
    from tensorflow.python.ops import gen_resource_variable_ops as raw

    data = getattr(handle, "_handle_data", None)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    container, name = _naming.handle_name(handle)
    debug_name = name.rpartition("/")[0]
    if container != "Anonymous" or is_random_state(debug_name):
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
    return State(f"{debug_name} {role} {dtype.name} {shape}", read, write, mark)


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
            bring_in_step(label, states)
    finally:
        busy.on = False


def _creation(handle: Any) -> int:
    number = _naming.handle_name(handle)[1].rpartition("/")[2]
    return int(number) if number.isdigit() else -1


_handles_in_step: set[str] = set()


def before_function(graph: Any, captured: Any) -> None:
    """A traced function that trains is about to run."""
    if graph._tf_mpi_in_step or getattr(busy, "on", False):
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
    label = f"start of function {next(_counter)}"
    _sync_handles(label, fresh.values(), graph._tf_mpi_trained.values())
    _handles_in_step.update(_naming.handle_name(h)[1] for h in fresh.values())


def before_tape() -> None:
    """The first forward pass that is no Session's and trains nothing by itself.

    It brings everything that exists in step.
    """
    global _tape_done
    if _tape_done or getattr(busy, "on", False):
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
