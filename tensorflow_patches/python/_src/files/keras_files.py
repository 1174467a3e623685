"""Files and messages of Keras 3, tf_keras and tensorflow.python.keras: only rank 0 writes them
(TF_MPI_IO). Also notices restored weights.

The state and decisions of callbacks are the same on all ranks; only their files and output are
suppressed on ranks other than 0, also in subclasses that call methods of their base class.
"""

from __future__ import annotations

import itertools
import os
import types
from collections.abc import Callable
from typing import Any

from tensorflow.mpi._src.files import names, saves
from tensorflow.mpi._src.interpose import hooking
from tensorflow.mpi._src.messaging import control_plane
from tensorflow.mpi._src.variables import initial_broadcast

_trainings = itertools.count(1)  # trainings with BackupAndRestore; the same on all ranks
_callbacks = itertools.count(1)  # calls of callbacks that may save; the same on all ranks

# Functions of Keras 3's file_utils that change files; only rank 0 runs them.
_CHANGES = {"copy", "makedirs", "remove", "remote_copy", "rmtree"}


def saved_by(function: Any) -> Any:
    """Wraps a saving function or method whose arguments are a model and a path, as Keras's are."""

    def path(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        return filepath

    return saves.on_rank_0(function, path)


def noticing_restore(function: Any) -> Any:
    """Wraps load_weights. load_model needs no wrapper: new variables are synchronized anyway."""

    def load_weights(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        result = function(model, filepath, *args, **kwargs)
        found = [
            *model.weights,
            *initial_broadcast.optimizer_variables(getattr(model, "optimizer", None)),
        ]
        initial_broadcast.state_changed(f"load_weights({str(filepath)!r})", found)
        return result

    return load_weights


def printing_summaries(io_utils: Any) -> Any:
    """tf_keras's io_utils for model.summary(), which prints on every rank."""
    return types.SimpleNamespace(**{**vars(io_utils), "print_msg": io_utils.print_msg.__wrapped__})


def passing(function: Any) -> Any:
    """Wraps a call of fit's callbacks, which all ranks reach at the same points."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with saves.passing(f"callbacks {next(_callbacks)}"):
            return function(*args, **kwargs)

    return call


def nothing(function: Any) -> Any:
    """For ranks other than 0: does nothing in place of `function`."""

    def do_nothing(*args: Any, **kwargs: Any) -> None:
        pass

    return do_nothing


def silent_files(file_utils: Any) -> Any:
    """A copy of Keras 3's file_utils that reads files but does not change any."""
    members = dict(vars(file_utils))
    for name in members.keys() & _CHANGES:  # older versions have fewer
        members[name] = nothing(members[name])
    members["File"] = _silent_open(getattr(*hooking.find(file_utils, "File")))
    return types.SimpleNamespace(**members)


def _silent_open(function: Any) -> Any:
    def silent(path: Any, mode: str = "r") -> Any:
        return function(path if mode.startswith("r") else os.devnull, mode)

    return silent


def closing_log(function: Any) -> Any:
    """Wraps CSVLogger.on_train_end. All ranks run it, rank 0 first: then its log is saved."""

    def path(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.filename

    return saves.on_rank_0(function, path, result=function)


def logging_nowhere(function: Any) -> Any:
    """Wraps CSVLogger.on_train_begin, to write the rows to /dev/null."""

    def on_train_begin(self: Any, *args: Any, **kwargs: Any) -> None:
        filename, self.filename = self.filename, os.devnull
        try:
            function(self, *args, **kwargs)
        finally:
            self.filename = filename

    return on_train_begin


def closing_board(function: Any) -> Any:
    """Wraps TensorBoard.on_train_end. All ranks run it, rank 0 first: then its folder is saved."""

    def path(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, "log_dir", None)

    return saves.on_rank_0(function, path, result=function)


def removing_backup(function: Any) -> Any:
    """Wraps BackupAndRestore.on_train_end: only rank 0 removes the folder."""
    return _removing(function, lambda self: self.backup_dir)


def _removing(function: Any, folder: Callable[[Any], Any]) -> Any:
    def path(self: Any, *_: Any, **__: Any) -> str:
        return f"{folder(self)} (end of training)"  # not a file: rank 0 posts it after the removal

    def result(self: Any, *_: Any, **__: Any) -> None:
        names.remove(os.fspath(folder(self)))

    return saves.on_rank_0(function, path, result)


def backing_up_whole_folder(function: Any) -> Any:
    """Wraps BackupAndRestore._save_model, to make rank 0's whole backup folder available under this
    rank's path: not only the weights, but also their epoch and earlier weights."""

    def save(self: Any, *args: Any, **kwargs: Any) -> None:
        function(self, *args, **kwargs)
        own = os.path.abspath(os.fspath(self.backup_dir))
        theirs = names.of_rank_0(own)
        if theirs != own:
            names.link_to_rank_0(own, theirs, kept="")

    return save


def saved_by_orbax(function: Any) -> Any:
    """Wraps OrbaxCheckpoint's save, which writes a folder per step."""

    def path(self: Any, step: int, logs: Any = None) -> str:
        return os.path.join(self.directory, str(step))

    return saves.on_rank_0(function, path)


def removing_tf_keras_backup(function: Any) -> Any:
    """Wraps delete_backup of tf_keras, whose CheckpointManager writes on rank 0 only."""
    return _removing(function, lambda self: self.write_checkpoint_manager.directory)


def agreeing_on_backup(function: Any) -> Any:
    """Wraps BackupAndRestore.on_train_begin, so that all ranks resume where rank 0 does."""

    def on_train_begin(self: Any, *args: Any, **kwargs: Any) -> None:
        mine: dict[str, Any] = {}
        error = None
        try:
            function(self, *args, **kwargs)
            mine = _progress(self)
        except Exception as failure:
            error = failure
            mine = {"error": f"{type(failure).__name__}: {failure}"}
        label = f"BackupAndRestore {next(_trainings)}"
        everyone = control_plane.headers(label, mine)
        if error is not None:
            raise error
        for rank, theirs in enumerate(everyone):
            if "error" in theirs:
                raise RuntimeError(
                    f"BackupAndRestore could not restore '{self.backup_dir}' on rank {rank}: "
                    f"{theirs['error']}"
                )
        if any(theirs != everyone[0] for theirs in everyone):
            _restore_progress(self, everyone[0])
            initial_broadcast.state_changed(f"BackupAndRestore({str(self.backup_dir)!r})")

    return on_train_begin


def _progress(callback: Any) -> dict[str, Any]:
    """Where this rank would resume: Keras 3's epoch, or tf_keras's counters."""
    state = getattr(callback, "_training_state", None)
    if state is None:
        model = callback.model
        epoch = getattr(model, "_initial_epoch", None)
        built = bool(getattr(model.optimizer, "built", False))
        return {"epoch": None if epoch is None else int(epoch), "built": built}
    return {name: int(variable.numpy()) for name, variable in _counters(state).items()}


def _restore_progress(callback: Any, progress: dict[str, Any]) -> None:
    state = getattr(callback, "_training_state", None)
    if state is not None:
        for name, variable in _counters(state).items():
            variable.assign(progress[name])
        return
    model = callback.model
    model._initial_epoch = progress["epoch"]
    if progress["built"] and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


def _counters(state: Any) -> dict[str, Any]:
    """tf_keras's counters. "saves" is part of the next backup's name, so ranks must agree on it."""
    return {
        "epoch": state._ckpt_saved_epoch,
        "batch": state._ckpt_saved_batch,
        "steps": state._model._train_counter,
        "saves": state.read_checkpoint_manager.checkpoint.save_counter,
    }
