"""What the patched files of TensorFlow call: one function per patch, none while not `active`.

Imported by TensorFlow's own modules while they are being imported, so nothing of TensorFlow is
imported at the top here.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import Any

active = False  # read by the patches, on their hot paths
rank = 0
size = 1
asked = False  # the script has called a collective of tf.mpi
asked_rank = False  # ... or asked for its rank or the number of ranks: it knows of them
used_keras = False  # fit, evaluate or predict was called
apply_ops: dict[str, tuple[str, bool]] = {}

_lock = threading.Lock()
_variables: list[weakref.ref[Any]] = []  # eager variables, in creation order; guarded by _lock
_applied = 0  # Apply ops created in graphs, for subclasses


def activate(this_rank: int, num_ranks: int) -> None:
    """Called once, by bootstrap.py, when the engine has started."""
    global active, rank, size, apply_ops
    from tensorflow.mpi._src.runtime import c_api

    apply_ops = c_api.apply_ops()
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
    from tensorflow.mpi._src.compat_v1 import gradients as v1_gradients
    from tensorflow.mpi._src.variables import naming

    with _lock:
        _applied += 1
    naming.apply_op_created(graph, op)
    v1_gradients.apply_op_created(op)


def function_called(graph: Any, captured: Any, eagerly: bool) -> None:
    """concrete_function.py, ConcreteFunction._call_flat: `graph` will run, or be nested."""
    if not hasattr(graph, "_tf_mpi_seen"):
        from tensorflow.mpi._src.variables import naming

        naming.function_first_called(graph, captured)
    trains, has_tape = hasattr(graph, "_tf_mpi_trained"), hasattr(graph, "_tf_mpi_tape")
    if not (trains or has_tape):
        return
    from tensorflow.mpi._src.variables import initial_broadcast, naming

    if not eagerly:
        naming.function_nested(graph)
    elif trains:
        initial_broadcast.before_function(graph, captured)
    else:
        initial_broadcast.before_tape()


def tape_entered() -> None:
    """backprop.py, GradientTape._push_tape: a forward pass begins, or is traced."""
    from tensorflow.mpi._src.variables import initial_broadcast, naming
    from tensorflow.python.eager import context

    if context.executing_eagerly():
        initial_broadcast.before_tape()
    else:
        naming.mark_tape()


def session_config(graph: Any, config: Any) -> Any:
    """session.py, BaseSession.__init__: returns `config` with a number that the kernels can see."""
    from tensorflow.mpi._src.compat_v1 import sessions

    return sessions.session_config(graph, config)


def session_run(session: Any, fetches: Any) -> None:
    """session.py, BaseSession._run and its callables: `fetches` are about to be computed."""
    from tensorflow.mpi._src.compat_v1 import sessions

    sessions.before_run(session, fetches)


def in_session(session: Any) -> contextlib.AbstractContextManager[None]:
    """session.py, BaseSession._run: around the call that runs what session_run announced."""
    if not active:
        return contextlib.nullcontext()
    from tensorflow.mpi._src.compat_v1 import sessions

    return sessions.ScopeOfRun(session)


def gradients_computed(optimizer: Any, gradients: Any, variables: Any) -> list[Any]:
    """optimizer.py, Optimizer.compute_gradients: returns the averages of `gradients`."""
    from tensorflow.mpi._src.compat_v1 import gradients as v1_gradients

    return v1_gradients.average(optimizer, gradients, variables)


def gradients_applied(optimizer: Any, pending: Any) -> Any:
    """optimizer.py, Optimizer.apply_gradients: returns `pending`, tuples of a gradient, a variable
    and its processor, with averages for gradients."""
    from tensorflow.mpi._src.compat_v1 import gradients as v1_gradients

    return v1_gradients.average_applied(optimizer, pending)


def optimizer_ready(optimizer: Any, variables: Any) -> None:
    """optimizer.py, Optimizer.apply_gradients: the slots for `variables` exist."""
    from tensorflow.mpi._src.variables import initial_broadcast

    initial_broadcast.before_optimizer(optimizer, variables)


def optimizer_subclassed(optimizer: Any) -> None:
    """optimizer.py, Optimizer.__init_subclass__: `optimizer` is a new class."""
    from tensorflow.mpi._src.compat_v1 import subclasses

    subclasses.guard_subclass(optimizer)


def optimizer_update(optimizer: Any, processor: Any, gradient: Any) -> Any:
    """optimizer.py, Optimizer.apply_gradients: does processor.update_op by an average."""
    from tensorflow.mpi._src.compat_v1 import gradients as v1_gradients

    return v1_gradients.update(optimizer, processor, gradient)


def shuffle_seeds(seed: Any, seed2: Any) -> tuple[Any, Any]:
    """random_seed.py of tf.data and random_ops.py: something will be shuffled with these seeds."""
    from tensorflow.mpi._src.data import seeds

    return seeds.of_rank_0(seed, seed2)


def dataset_iterated(dataset: Any) -> Any:
    """dataset_ops.py and dataset_autograph.py: returns what a loop over `dataset` iterates."""
    from tensorflow.mpi._src.data import dataset_shard

    return dataset_shard.iterated(dataset)


def left_to_rank_0() -> bool:
    """Where TensorFlow writes a file: True on a rank that writes none (TF_MPI_IO)."""
    if not active:
        return False
    from tensorflow.mpi._src.files import saves

    return saves.left_to_rank_0()


def _saves(function: Any, path: Any, result: Any) -> Any:
    """See saves.saves; `function` as it is while not `active`."""
    if not active:
        return function
    from tensorflow.mpi._src.files import saves

    return saves.saves(function, path, result)


def saves_checkpoint(function: Any) -> Any:
    """checkpoint.py, decorates TrackableSaver.save."""

    def path(self: Any, file_prefix: Any, number: Any = None, *args: Any, **kwargs: Any) -> Any:
        from tensorflow.python.framework import ops

        if ops.inside_function() or getattr(file_prefix, "graph", None) is not None:
            return None  # it is written when the function or the session runs
        number = kwargs.get("checkpoint_number", number)
        return f"{file_prefix}-{number}" if number else file_prefix

    def result(self: Any, file_prefix: Any, number: Any = None, *args: Any, **kwargs: Any) -> Any:
        from tensorflow.python.eager import context
        from tensorflow.python.framework import dtypes, ops

        saved = path(self, file_prefix, number, *args, **kwargs) or file_prefix
        if context.executing_eagerly() or ops.inside_function():
            return ops.convert_to_tensor(saved, dtype=dtypes.string)
        return saved  # from a session, which the script gave, or the default one

    return _saves(function, path, result)


def saves_variables(function: Any) -> Any:
    """saver.py, decorates Saver._write, the part of Saver.save that writes variables."""

    def result(saver: Any, session: Any, checkpoint_file: str) -> str:
        sharded_v1 = saver.saver_def and saver.saver_def.sharded and saver.saver_def.version == 1
        return f"{checkpoint_file}-?????-of-00001" if sharded_v1 else checkpoint_file

    return _saves(function, lambda saver, session, checkpoint_file: checkpoint_file, result)


def saves_graph(function: Any) -> Any:
    """graph_io.py, decorates write_graph."""

    def path(graph_or_graph_def: Any, logdir: Any, name: Any, as_text: bool = True) -> str:
        return os.path.join(logdir, name)

    return _saves(function, path, path)


def saves_model(function: Any) -> Any:
    """saved_model/save.py, decorates save_and_return_nodes."""

    def path(obj: Any, export_dir: Any, *args: Any, **kwargs: Any) -> Any:
        return export_dir

    return _saves(function, path, lambda *args, **kwargs: ([], {}))


def saves_built_model(function: Any) -> Any:
    """saved_model/builder_impl.py, decorates _SavedModelBuilder.save."""

    def result(builder: Any, as_text: bool = False, *args: Any, **kwargs: Any) -> bytes:
        name = "saved_model.pbtxt" if as_text else "saved_model.pb"
        return os.path.join(os.fsencode(builder._export_dir), name.encode())

    return _saves(function, lambda builder, *args, **kwargs: builder._export_dir, result)


def tells_at_end(function: Any) -> Any:
    """A decorator for what saves and then writes more; nothing is decorated while not `active`."""
    if not active:
        return function
    from tensorflow.mpi._src.files import saves

    return saves.tells_at_end(function)


def saves_without_waiting() -> Any:
    """A context for saves that every rank makes by its own clock."""
    if not active:
        return contextlib.nullcontext()
    from tensorflow.mpi._src.files import saves

    return saves.without_waiting()


def checkpoint_restored(checkpoint: Any, path: Any) -> None:
    """checkpoint.py, Checkpoint.read and restore: `checkpoint` has been read from `path`.

    In a graph this says nothing yet, and Sessions bring in step what they train. Variables that do
    not exist yet are new, and come in step as such; so are those of a SavedModel.
    """
    from tensorflow.mpi._src.variables import initial_broadcast
    from tensorflow.python.checkpoint import util
    from tensorflow.python.eager import context

    if path is not None and context.executing_eagerly():
        found = util.list_objects(checkpoint._saver._graph_view)
        initial_broadcast.state_changed(f"restore({str(path)!r})", found)


def silent_summary_writer() -> Any:
    """summary_ops_v2.py, create_file_writer: a writer that records nothing."""
    from tensorflow.mpi._src.files import summaries

    return summaries.SilentWriter()


def silent_events_writer() -> Any:
    """event_file_writer.py, EventFileWriter.__init__: what takes events and writes none."""
    from tensorflow.mpi._src.files import summaries

    return summaries.SilentEvents()


def records_nothing(writer: Any) -> bool:
    """summary_ops_v2.py: whether `writer` is of silent_summary_writer()."""
    return getattr(writer, "_tf_mpi_silent", False)
