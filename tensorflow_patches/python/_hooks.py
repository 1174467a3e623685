"""What the patched files of TensorFlow call: one function per patch, none while not `active`.

Imported by TensorFlow's own modules while they are being imported, so nothing of TensorFlow is
imported at the top here.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

active = False  # read by the patches, on their hot paths
rank = 0
size = 1
asked = False  # the script has called a collective of tf.mpi
apply_ops: dict[str, tuple[str, bool]] = {}

_lock = threading.Lock()
_variables: list[weakref.ref[Any]] = []  # eager variables, in creation order; guarded by _lock
_applied = 0  # Apply ops created in graphs, for _checks


def activate(this_rank: int, num_ranks: int) -> None:
    """Called once, by _bootstrap, when the engine has started."""
    global active, rank, size, apply_ops
    from tensorflow.mpi import _lib

    apply_ops = _lib.apply_ops()
    rank, size, active = this_rank, num_ranks, True


def variable_created(variable: Any) -> None:
    """resource_variable_ops.py, BaseResourceVariable.__init__: an eager variable exists."""
    if not variable._in_graph_mode:
        with _lock:
            _variables.append(weakref.ref(variable))


def live_variables() -> list[Any]:
    """The eager variables that still exist, in creation order."""
    with _lock:
        alive = [(ref, ref()) for ref in _variables]
        _variables[:] = [ref for ref, variable in alive if variable is not None]
    return [variable for _, variable in alive if variable is not None]


def apply_op_created(graph: Any, op: Any) -> None:
    """ops.py, Graph._create_op_internal: `op`, one of `apply_ops`, is now in `graph`.

    Declares its variable, so that variables are numbered in program order, and numbers the second
    and further Apply ops of one kind on one variable in one graph; marks those whose gradient is an
    average already.
    """
    global _applied
    from tensorflow.mpi import _gradients, _naming

    with _lock:
        _applied += 1
    _naming.apply_op_created(graph, op)
    _gradients.apply_op_created(op)


def function_called(graph: Any, captured: Any, eagerly: bool) -> None:
    """concrete_function.py, ConcreteFunction._call_flat: `graph` will run, or be nested."""
    if not hasattr(graph, "_tf_mpi_seen"):
        from tensorflow.mpi import _naming

        _naming.function_first_called(graph, captured)
    trains, has_tape = hasattr(graph, "_tf_mpi_trained"), hasattr(graph, "_tf_mpi_tape")
    if not (trains or has_tape):
        return
    from tensorflow.mpi import _naming, _sync

    if not eagerly:
        _naming.function_nested(graph)
    elif trains:
        _sync.before_function(graph, captured)
    else:
        _sync.before_tape()


def tape_entered() -> None:
    """backprop.py, GradientTape._push_tape: a forward pass begins, or is traced."""
    from tensorflow.mpi import _naming, _sync
    from tensorflow.python.eager import context

    if context.executing_eagerly():
        _sync.before_tape()
    else:
        _naming.mark_tape()


def session_config(graph: Any, config: Any) -> Any:
    """session.py, BaseSession.__init__: returns `config` with a number that the kernels can see."""
    from tensorflow.mpi import _sessions

    return _sessions.session_config(graph, config)


def session_run(session: Any, fetches: Any) -> None:
    """session.py, BaseSession._run: `fetches` are about to be computed."""
    from tensorflow.mpi import _sessions

    _sessions.before_run(session, fetches)


def gradients_computed(optimizer: Any, gradients: Any, variables: Any) -> list[Any]:
    """optimizer.py, Optimizer.compute_gradients: returns the averages of `gradients`."""
    from tensorflow.mpi import _gradients

    return _gradients.average(optimizer, gradients, variables)


def optimizer_ready(optimizer: Any, variables: Any) -> None:
    """optimizer.py, Optimizer.apply_gradients: the slots for `variables` exist."""
    from tensorflow.mpi import _sync

    _sync.before_optimizer(optimizer, variables)


def optimizer_subclassed(optimizer: Any) -> None:
    """optimizer.py, Optimizer.__init_subclass__: `optimizer` is a new class."""
    from tensorflow.mpi import _checks

    _checks.guard_subclass(optimizer)


def optimizer_update(optimizer: Any, processor: Any, gradient: Any, variable: Any) -> Any:
    """optimizer.py, Optimizer.apply_gradients: does processor.update_op, or refuses."""
    from tensorflow.mpi import _checks

    return _checks.update(optimizer, processor, gradient, variable)


def shuffle_seed(seed: Any, seed2: Any) -> Any:
    """random_seed.py of tf.data, get_seed: a dataset will shuffle with these seeds, or None."""
    if seed is not None or seed2 is not None:
        return seed, seed2
    from tensorflow.mpi import _seeds

    return None, _seeds.dataset_seed()


def tensor_shuffle_seed(seed: Any, seed2: Any) -> Any:
    """random_ops.py, random_shuffle: a tensor is shuffled with these seeds, or None."""
    if seed is not None or seed2 is not None:
        return seed, seed2
    from tensorflow.mpi import _seeds

    return None, _seeds.tensor_seed()
