"""What the patched files of TensorFlow read and call: whether ranks average, and what they do then.

The patches call functions of this module, and read `active` before they do so on hot paths. Each
function here does what stock TensorFlow does; `fill` puts in its place what a room of _src does,
when the runtime starts (rooms.py). So this module imports nothing of ours, and nothing of
TensorFlow, whose modules import it while they are being imported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

active = False  # read by the patches, on their hot paths
apply_ops: dict[str, tuple[str, bool]] = {}  # name -> (gradient input, sparse)

# What updates variables and is no optimizer op.
ASSIGN_OPS = frozenset(
    "AssignVariableOp AssignAddVariableOp AssignSubVariableOp ResourceScatterAdd "
    "ResourceScatterSub ResourceScatterUpdate ResourceScatterMul ResourceScatterNdAdd "
    "ResourceScatterNdSub ResourceScatterNdUpdate ResourceStridedSliceAssign Assign AssignAdd "
    "AssignSub ScatterAdd ScatterSub ScatterUpdate ScatterNdAdd ScatterNdSub "
    "ScatterNdUpdate".split()
)

_stock: dict[str, Callable[..., Any]] = {}  # the hooks, as they do what stock TensorFlow does
_Function = TypeVar("_Function", bound=Callable[..., Any])


def fill(**functions: Callable[..., Any]) -> None:
    """Puts `functions` in the place of the hooks of their names, each of which is filled once."""
    for name, function in functions.items():
        assert globals()[name] is _stock[name], name
        globals()[name] = function


def unfilled() -> list[str]:
    """The hooks that nothing has filled; none once the runtime has started."""
    return sorted(name for name, stock in _stock.items() if globals()[name] is stock)


def empty() -> None:
    """Each hook does what stock TensorFlow does, and the patches call none."""
    global active
    active = False
    globals().update(_stock)


def described(name: str) -> tuple[str, str]:
    """Of a hook: where the patched file calls it, and for what."""
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
    """ops.py, Graph._create_op_internal: an optimizer op, of `apply_ops`, is now in a graph."""


@_hook
def assign_op_created(graph: Any, op: Any) -> None:
    """ops.py, Graph._create_op_internal: an op of ASSIGN_OPS is now in a graph."""


@_hook
def gradients_taken(gradients: Any, sources: Any) -> Any:
    """backprop.py, GradientTape.gradient, and gradients_impl.py: gradients were taken.

    Returns what the script gets for `gradients`, those of each of `sources`.
    """
    return gradients


@_hook
def function_entered(graph: Any, arguments: Any, eagerly: bool) -> None:
    """concrete_function.py, ConcreteFunction._call_flat: `graph` will run on `arguments`.

    Or be nested; it has what it captures besides.
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
    """session.py, BaseSession.__init__: kernels can tell Sessions apart.

    Returns `config` with a number that they see.
    """
    return config


@_hook
def session_run(session: Any, fetches: Any) -> None:
    """session.py, BaseSession._run and its callables: `fetches` are about to be computed."""


@_hook
def in_session(session: Any) -> contextlib.AbstractContextManager[None]:
    """session.py, BaseSession._run: around the call that runs what session_run announced."""
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
    """optimizer.py, Optimizer.apply_gradients: averages all gradients that are none yet.

    Returns `pending`, tuples of a gradient, a variable and its processor, with averages.
    """
    return pending


@_hook
def optimizer_update(optimizer: Any, processor: Any, gradient: Any) -> Any:
    """optimizer.py, Optimizer.apply_gradients: does processor.update_op by an average."""
    return processor.update_op(optimizer, gradient)


# Datasets


@_hook
def shuffle_seeds(seed: Any, seed2: Any) -> tuple[Any, Any]:
    """random_seed.py, get_seed, and random_ops.py: something will be shuffled with these seeds."""
    return seed, seed2


@_hook
def dataset_iterated(dataset: Any) -> Any:
    """dataset_ops.py and dataset_autograph.py: returns what a loop over `dataset` iterates."""
    return dataset


# Files


@_hook
def left_to_rank_0() -> bool:
    """checkpoint_management.py and others: True on a rank that writes no file."""
    return False


@_hook
def saves_checkpoint(function: Any) -> Any:
    """checkpoint.py, TrackableSaver.save: rank 0 alone writes it."""
    return function


@_hook
def saves_variables(function: Any) -> Any:
    """saver.py, Saver._write: rank 0 alone writes it.

    That is the part of Saver.save that writes variables.
    """
    return function


@_hook
def saves_graph(function: Any) -> Any:
    """graph_io.py, write_graph: rank 0 alone writes it."""
    return function


@_hook
def saves_model(function: Any) -> Any:
    """save.py, save_and_return_nodes: rank 0 alone writes it."""
    return function


@_hook
def saves_built_model(function: Any) -> Any:
    """builder_impl.py, _SavedModelBuilder.save: rank 0 alone writes it."""
    return function


@_hook
def tells_at_end(function: Any) -> Any:
    """saver.py and checkpoint.py, save: tells of what it saves at its end, after more."""
    return function


@_hook
def saves_without_waiting() -> contextlib.AbstractContextManager[None]:
    """supervisor.py and basic_session_run_hooks.py: saves that each rank makes by its clock."""
    return contextlib.nullcontext()


@_hook
def silent_summary_writer() -> Any:
    """summary_ops_v2.py, create_file_writer: a writer that records nothing."""


@_hook
def silent_events_writer() -> Any:
    """event_file_writer.py, EventFileWriter.__init__: what takes events and writes none."""


@_hook
def records_nothing(writer: Any) -> bool:
    """summary_ops_v2.py: whether `writer` is of silent_summary_writer()."""
    return False
