"""Functions that TensorFlow's patched files call; runtime/hooks.py says where and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorflow.mpi._src.average import apply_ops, script_gradients
from tensorflow.mpi._src.compat_v1 import gradients, sessions, subclasses
from tensorflow.mpi._src.data import dataset_shard, seeds
from tensorflow.mpi._src.files import saves, tensorflow_files
from tensorflow.mpi._src.interpose.replacement_table import ALWAYS, How, Row
from tensorflow.mpi._src.random import own_rows
from tensorflow.mpi._src.variables import initial_broadcast

_START, _SESSIONS = "tf/variables/test_start.py", "tf/compat_v1/test_compat_v1.py"
_TAKEN, _ERRORS = "tf/average/test_taken.py", "tf/runtime/test_errors.py"
_FILES, _SHARD = "tf/files/test_files.py", "tf/data/test_shard.py"


def _call(hook: str, wrapper: Callable[..., Any], test: str) -> Row:
    return Row(hook, How.PATCH, wrapper, "", test, ALWAYS)


def _decorator(hook: str, wrapper: Callable[..., Any]) -> Row:
    return Row(hook, How.DECORATOR, wrapper, "", _FILES, ALWAYS)


PATCHES = (
    _call("variable_created", own_rows.variable_created, _START),
    _call("function_called", initial_broadcast.function_called, _START),
    _call("tape_entered", initial_broadcast.tape_entered, _START),
    _call("optimizer_ready", initial_broadcast.before_optimizer, _SESSIONS),
    _call("checkpoint_restored", initial_broadcast.checkpoint_restored, _START),
    _call("apply_op_created", apply_ops.apply_op_created, _SESSIONS),
    _call("assign_op_created", script_gradients.assigned, _TAKEN),
    _call("gradients_taken", script_gradients.taken, _TAKEN),
    _call("function_entered", script_gradients.function_entered, _TAKEN),
    _call("session_config", sessions.session_config, _SESSIONS),
    _call("session_run", sessions.before_run, _SESSIONS),
    _call("in_session", sessions.ScopeOfRun, _SESSIONS),
    _call("optimizer_subclassed", subclasses.guard_subclass, _ERRORS),
    _call("gradients_computed", gradients.computed, _SESSIONS),
    _call("gradients_applied", gradients.average_applied, _SESSIONS),
    _call("optimizer_update", gradients.update, _SESSIONS),
    _call("shuffle_seeds", seeds.of_rank_0, "tf/keras/test_keras_fit.py"),
    _call("dataset_iterated", dataset_shard.iterated, _SHARD),
    _call("left_to_rank_0", saves.left_to_rank_0, _FILES),
    _call("saves_without_waiting", saves.without_waiting, _FILES),
    _call("silent_summary_writer", tensorflow_files.silent_summary_writer, _FILES),
    _call("silent_events_writer", tensorflow_files.silent_events_writer, _FILES),
    _call("records_nothing", tensorflow_files.is_silent, _FILES),
    _decorator("saves_checkpoint", tensorflow_files.checkpoint_on_rank_0),
    _decorator("saves_variables", tensorflow_files.variables_on_rank_0),
    _decorator("saves_graph", tensorflow_files.graph_on_rank_0),
    _decorator("saves_model", tensorflow_files.model_on_rank_0),
    _decorator("saves_built_model", tensorflow_files.built_model_on_rank_0),
    _decorator("tells_at_end", saves.posts_at_end),
)
