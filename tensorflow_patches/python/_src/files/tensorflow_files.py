"""TensorFlow's own files, which only rank 0 writes: checkpoints, graphs, SavedModels, summaries."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.files import names, saves


def checkpoint_state_on_rank_0(function: Any) -> Any:
    """Wraps update_checkpoint_state, which only scripts call, not savers: only rank 0 writes."""

    def path(
        save_dir: Any,
        model_checkpoint_path: Any,
        all_model_checkpoint_paths: Any = None,
        latest_filename: str | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> str:
        return os.path.join(os.fspath(save_dir), latest_filename or "checkpoint")

    return saves.on_rank_0(function, path)


def remove_links(function: Any) -> Any:
    """Replaces _delete_file_if_exists, which removes old checkpoints, on ranks other than 0.

    `function` is not called: rank 0 removes its own files, and this rank only its links to them.
    """

    def delete_file_if_exists(filespec: Any) -> None:
        names.remove(os.fsdecode(filespec))

    return delete_file_if_exists


def checkpoint_on_rank_0(function: Any) -> Any:
    """Wraps TrackableSaver.save: only rank 0 writes."""

    def path(self: Any, file_prefix: Any, number: Any = None, *args: Any, **kwargs: Any) -> Any:
        from tensorflow.python.framework import ops

        if ops.inside_function() or getattr(file_prefix, "graph", None) is not None:
            return None  # the file is written when the function or the session runs
        number = kwargs.get("checkpoint_number", number)
        return f"{file_prefix}-{number}" if number else file_prefix

    def result(self: Any, file_prefix: Any, number: Any = None, *args: Any, **kwargs: Any) -> Any:
        from tensorflow.python.framework import ops

        saved = path(self, file_prefix, number, *args, **kwargs) or file_prefix
        if tf.executing_eagerly() or ops.inside_function():
            return tf.convert_to_tensor(saved, dtype=tf.string)
        return saved  # as the stock method returns it in a session

    return saves.on_rank_0(function, path, result)


def variables_on_rank_0(function: Any) -> Any:
    """Wraps Saver._write, the part of Saver.save that writes variables: only rank 0 writes."""

    def result(saver: Any, session: Any, checkpoint_file: str) -> str:
        sharded_v1 = saver.saver_def and saver.saver_def.sharded and saver.saver_def.version == 1
        return f"{checkpoint_file}-?????-of-00001" if sharded_v1 else checkpoint_file

    return saves.on_rank_0(
        function, lambda saver, session, checkpoint_file: checkpoint_file, result
    )


def graph_on_rank_0(function: Any) -> Any:
    """Wraps graph_io.write_graph: only rank 0 writes."""

    def path(graph_or_graph_def: Any, logdir: Any, name: Any, as_text: bool = True) -> str:
        return os.path.join(logdir, name)

    return saves.on_rank_0(function, path, path)


def model_on_rank_0(function: Any) -> Any:
    """Wraps save_and_return_nodes, which writes a SavedModel: only rank 0 writes."""

    def path(obj: Any, export_dir: Any, *args: Any, **kwargs: Any) -> Any:
        return export_dir

    return saves.on_rank_0(function, path, lambda *args, **kwargs: ([], {}))


def built_model_on_rank_0(function: Any) -> Any:
    """Wraps _SavedModelBuilder.save: only rank 0 writes."""

    def result(builder: Any, as_text: bool = False, *args: Any, **kwargs: Any) -> bytes:
        name = "saved_model.pbtxt" if as_text else "saved_model.pb"
        return os.path.join(os.fsencode(builder._export_dir), name.encode())

    return saves.on_rank_0(function, lambda builder, *args, **kwargs: builder._export_dir, result)


# summaries.py subclasses TensorFlow's classes, so it is imported when the first writer is created.


def silent_summary_writer() -> Any:
    """The writer that create_file_writer returns on other ranks: it records nothing."""
    from tensorflow.mpi._src.files import summaries

    return summaries.SilentWriter()


def silent_events_writer() -> Any:
    """The writer of an EventFileWriter on other ranks: it discards events."""
    from tensorflow.mpi._src.files import summaries

    return summaries.SilentEvents()


def is_silent(writer: Any) -> bool:
    """Whether `writer` is from silent_summary_writer()."""
    return getattr(writer, "_tf_mpi_silent", False)
