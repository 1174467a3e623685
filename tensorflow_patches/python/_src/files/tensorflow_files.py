"""What TensorFlow itself writes, rank 0 alone does: checkpoints, graphs, SavedModels, summaries."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from tensorflow.mpi._src.files import names, saves
from tensorflow.mpi._src.interpose import hooking
from tensorflow.mpi._src.runtime import hooks


def install() -> None:
    """Called once, when TensorFlow's libraries are loaded."""
    hooks.fill(
        saves_checkpoint=_saves_checkpoint,
        saves_variables=_saves_variables,
        saves_graph=_saves_graph,
        saves_model=_saves_model,
        saves_built_model=_saves_built_model,
        silent_summary_writer=_silent_summary_writer,
        silent_events_writer=_silent_events_writer,
        records_nothing=_records_nothing,
    )
    if saves.shared():
        management = "tensorflow.python.checkpoint.checkpoint_management"
        hooking.when_imported(management, _update_once)
        if saves.left_to_rank_0():
            hooking.when_imported(management, _remove_other_names)


def _update_once(module: ModuleType) -> None:
    """update_checkpoint_state, if the script calls it: savers call what is below it."""

    def path(
        save_dir: Any,
        model_checkpoint_path: Any,
        all_model_checkpoint_paths: Any = None,
        latest_filename: str | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> str:
        return os.path.join(os.fspath(save_dir), latest_filename or "checkpoint")

    hooking.wrap(module, "update_checkpoint_state", lambda function: saves.saves(function, path))


def _remove_other_names(module: ModuleType) -> None:
    """Of an old checkpoint, which rank 0 removes."""

    def removes(function: Any) -> Any:
        def delete_file_if_exists(filespec: Any) -> None:
            names.remove(os.fsdecode(filespec))

        return delete_file_if_exists

    hooking.wrap(module, "_delete_file_if_exists", removes)


def _saves_checkpoint(function: Any) -> Any:
    """See hooks.saves_checkpoint."""

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

    return saves.saves(function, path, result)


def _saves_variables(function: Any) -> Any:
    """See hooks.saves_variables."""

    def result(saver: Any, session: Any, checkpoint_file: str) -> str:
        sharded_v1 = saver.saver_def and saver.saver_def.sharded and saver.saver_def.version == 1
        return f"{checkpoint_file}-?????-of-00001" if sharded_v1 else checkpoint_file

    return saves.saves(function, lambda saver, session, checkpoint_file: checkpoint_file, result)


def _saves_graph(function: Any) -> Any:
    """See hooks.saves_graph."""

    def path(graph_or_graph_def: Any, logdir: Any, name: Any, as_text: bool = True) -> str:
        return os.path.join(logdir, name)

    return saves.saves(function, path, path)


def _saves_model(function: Any) -> Any:
    """See hooks.saves_model."""

    def path(obj: Any, export_dir: Any, *args: Any, **kwargs: Any) -> Any:
        return export_dir

    return saves.saves(function, path, lambda *args, **kwargs: ([], {}))


def _saves_built_model(function: Any) -> Any:
    """See hooks.saves_built_model."""

    def result(builder: Any, as_text: bool = False, *args: Any, **kwargs: Any) -> bytes:
        name = "saved_model.pbtxt" if as_text else "saved_model.pb"
        return os.path.join(os.fsencode(builder._export_dir), name.encode())

    return saves.saves(function, lambda builder, *args, **kwargs: builder._export_dir, result)


# summaries.py derives from TensorFlow's classes, so it is imported when the first writer is made.


def _silent_summary_writer() -> Any:
    """See hooks.silent_summary_writer."""
    from tensorflow.mpi._src.files import summaries

    return summaries.SilentWriter()


def _silent_events_writer() -> Any:
    """See hooks.silent_events_writer."""
    from tensorflow.mpi._src.files import summaries

    return summaries.SilentEvents()


def _records_nothing(writer: Any) -> bool:
    """See hooks.records_nothing."""
    return getattr(writer, "_tf_mpi_silent", False)
