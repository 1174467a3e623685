"""The hooks that TensorFlow's patched files call.

The patches call functions of this module; on hot paths they first check `active`. Each function
here does what stock TensorFlow does, until `fill` replaces it with a function of a room of _src,
when the runtime starts (rooms.py). This module imports nothing of ours or of TensorFlow, because
TensorFlow's modules import it while they are being imported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

active = False  # read by the patches, on their hot paths
apply_ops: dict[str, tuple[str, bool]] = {}  # name -> (gradient input, sparse)

# Ops that update variables but are not optimizer ops.
ASSIGN_OPS = frozenset(
    "AssignVariableOp AssignAddVariableOp AssignSubVariableOp ResourceScatterAdd "
    "ResourceScatterSub ResourceScatterUpdate ResourceScatterMul ResourceScatterNdAdd "
    "ResourceScatterNdSub ResourceScatterNdUpdate ResourceStridedSliceAssign Assign AssignAdd "
    "AssignSub ScatterAdd ScatterSub ScatterUpdate ScatterNdAdd ScatterNdSub "
    "ScatterNdUpdate".split()
)

_stock: dict[str, Callable[..., Any]] = {}  # the hooks' original functions, by name
_Function = TypeVar("_Function", bound=Callable[..., Any])


def fill(**functions: Callable[..., Any]) -> None:
    """Replaces the hooks of these names with `functions`; each hook may be replaced once."""
    for name, function in functions.items():
        assert globals()[name] is _stock[name], name
        globals()[name] = function


def unfilled() -> list[str]:
    """The hooks that have not been replaced; none once the runtime has started."""
    return sorted(name for name, stock in _stock.items() if globals()[name] is stock)


def described(name: str) -> tuple[str, str]:
    """Where TensorFlow's patched files call a hook, and for what, from its docstring."""
    where, _, what = str(_stock[name].__doc__).partition("\n")[0].partition(": ")
    return where, what.rstrip(".")


def _hook(function: _Function) -> _Function:
    _stock[function.__name__] = function
    return function


# Variables and functions


@_hook
def variable_created(variable: Any) -> None:
    """resource_variable_ops.py, BaseResourceVariable.__init__: a variable exists."""


@_hook
def apply_op_created(graph: Any, op: Any) -> None:
    """ops.py, Graph._create_op_internal: an optimizer op was created in a graph."""


@_hook
def assign_op_created(graph: Any, op: Any) -> None:
    """ops.py, Graph._create_op_internal: an op of ASSIGN_OPS was created in a graph."""


@_hook
def gradients_taken(gradients: Any, sources: Any) -> Any:
    """backprop.py, GradientTape.gradient, and gradients_impl.py: gradients were computed.

    Returns what the script gets in place of `gradients`, one for each of `sources`.
    """
    return gradients


@_hook
def function_entered(graph: Any, arguments: Any, eagerly: bool) -> None:
    """concrete_function.py, ConcreteFunction._call_flat: `graph` will run on `arguments`.

    Also called if it will be nested in another graph. `arguments` do not include its captures.
    """


@_hook
def function_called(graph: Any, captured: Any, eagerly: bool) -> None:
    """concrete_function.py, ConcreteFunction._call_flat: `graph` will run, or be nested."""


@_hook
def tape_entered() -> None:
    """backprop.py, GradientTape._push_tape: a forward pass begins, or is traced."""


@_hook
def checkpoint_restored(checkpoint: Any, path: Any) -> None:
    """checkpoint.py, Checkpoint.read and restore: `checkpoint` has been read from `path`."""


# Sessions


@_hook
def session_config(graph: Any, config: Any) -> Any:
    """session.py, BaseSession.__init__: lets kernels tell Sessions apart.

    Returns `config` with a number that kernels can read.
    """
    return config


@_hook
def session_run(session: Any, fetches: Any) -> None:
    """session.py, BaseSession._run and its callables: `fetches` are about to be computed."""


@_hook
def in_session(session: Any) -> contextlib.AbstractContextManager[None]:
    """session.py, BaseSession._run: wraps the call that session_run announced."""
    return contextlib.nullcontext()


# compat.v1's optimizers


@_hook
def optimizer_subclassed(optimizer: Any) -> None:
    """optimizer.py, Optimizer.__init_subclass__: `optimizer` is a new class."""


@_hook
def gradients_computed(optimizer: Any, gradients: Any, variables: Any) -> Any:
    """optimizer.py, Optimizer.compute_gradients: returns the averages of `gradients`."""
    return gradients


@_hook
def optimizer_ready(optimizer: Any, variables: Any) -> None:
    """optimizer.py, Optimizer.apply_gradients: the slots for `variables` exist."""


@_hook
def gradients_applied(optimizer: Any, pending: Any) -> Any:
    """optimizer.py, Optimizer.apply_gradients: averages all gradients not yet averaged.

    Returns `pending`, tuples of a gradient, a variable and its processor, with averages.
    """
    return pending


@_hook
def optimizer_update(optimizer: Any, processor: Any, gradient: Any) -> Any:
    """optimizer.py, Optimizer.apply_gradients: calls processor.update_op with an average."""
    return processor.update_op(optimizer, gradient)


# Datasets


@_hook
def shuffle_seeds(seed: Any, seed2: Any) -> tuple[Any, Any]:
    """random_seed.py, get_seed, and random_ops.py: these seeds will be used for a shuffle."""
    return seed, seed2


@_hook
def dataset_iterated(dataset: Any) -> Any:
    """dataset_ops.py and dataset_autograph.py: returns the dataset that a loop iterates."""
    return dataset


# Files


@_hook
def left_to_rank_0() -> bool:
    """checkpoint_management.py and others: True on a rank that writes no files."""
    return False


@_hook
def saves_checkpoint(function: Any) -> Any:
    """checkpoint.py, TrackableSaver.save: only rank 0 writes it."""
    return function


@_hook
def saves_variables(function: Any) -> Any:
    """saver.py, Saver._write: only rank 0 writes it.

    This is the part of Saver.save that writes variables.
    """
    return function


@_hook
def saves_graph(function: Any) -> Any:
    """graph_io.py, write_graph: only rank 0 writes it."""
    return function


@_hook
def saves_model(function: Any) -> Any:
    """save.py, save_and_return_nodes: only rank 0 writes it."""
    return function


@_hook
def saves_built_model(function: Any) -> Any:
    """builder_impl.py, _SavedModelBuilder.save: only rank 0 writes it."""
    return function


@_hook
def tells_at_end(function: Any) -> Any:
    """saver.py and checkpoint.py, save and _write: posts its saves only at its end."""
    return function


@_hook
def saves_without_waiting() -> contextlib.AbstractContextManager[None]:
    """supervisor.py and basic_session_run_hooks.py: saves that each rank does at its own time."""
    return contextlib.nullcontext()


@_hook
def silent_summary_writer() -> Any:
    """summary_ops_v2.py, create_file_writer: a writer that records nothing."""


@_hook
def silent_events_writer() -> Any:
    """event_file_writer.py, EventFileWriter.__init__: a writer that discards events."""


@_hook
def records_nothing(writer: Any) -> bool:
    """summary_ops_v2.py: whether `writer` is from silent_summary_writer()."""
    return False
