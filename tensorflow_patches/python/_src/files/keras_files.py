"""Files and messages of Keras 3 and tf_keras: rank 0's alone (TF_MPI_IO), and notice of restores.

So are those of tensorflow.python.keras, whose own format of weights, h5, stock TensorFlow cannot
write.

What callbacks decide and remember is left as it is, the same on all ranks: only what they write
and print is taken away on ranks other than 0. A subclass that calls its base's methods finds the
same.
"""

from __future__ import annotations

import itertools
import os
import types
from types import ModuleType
from typing import Any

from tensorflow.mpi._src.files import names, saves
from tensorflow.mpi._src.interpose import hooking
from tensorflow.mpi._src.messaging import control_plane
from tensorflow.mpi._src.variables import initial_broadcast

_trainings = itertools.count(1)  # that BackupAndRestore takes part in, the same on all ranks
_callbacks = itertools.count(1)  # calls of callbacks that may save, the same on all ranks

_IN_TENSORFLOW = "tensorflow.python.keras"

# Methods of CallbackList in which callbacks save.
_SAVING = ("on_epoch_end", "on_train_batch_end", "on_train_end")

# Functions of Keras 3's file_utils that change the disk; others leave that to rank 0.
_CHANGES = {"copy", "makedirs", "remove", "remote_copy", "rmtree"}


def install() -> None:
    """Called once, when TensorFlow's libraries are loaded."""
    for keras in ("keras", "tf_keras"):
        hooking.when_imported(f"{keras}.src.saving.saving_api", _notice_restores)
    hooking.when_imported("keras.src.callbacks.backup_and_restore", _agree_on_backup)
    hooking.when_imported("tf_keras.src.callbacks", _agree_on_backup)
    if not saves.shared():
        return
    for keras in ("keras", "tf_keras"):
        hooking.when_imported(f"{keras}.src.saving.saving_api", _save_once)
        hooking.when_imported(f"{keras}.src.utils.io_utils", _print_once)
    hooking.when_imported("tf_keras.src.utils.layer_utils", _print_summaries)
    hooking.when_imported("keras.src.models.model", _export_once)
    hooking.when_imported("keras.src.callbacks.callback_list", _pass_callbacks)
    hooking.when_imported("tf_keras.src.callbacks", _pass_callbacks)
    for name, hook in _KERAS_CALLBACKS.items():
        hooking.when_imported(f"keras.src.callbacks.{name}", hook)
    hooking.when_imported("tf_keras.src.callbacks", _tf_keras_callbacks)
    hooking.when_imported("tf_keras.src.callbacks_v1", _closed_board)
    hooking.when_imported(f"{_IN_TENSORFLOW}.callbacks", _pass_callbacks)
    hooking.when_imported(f"{_IN_TENSORFLOW}.callbacks", _tf_keras_callbacks)
    hooking.when_imported(f"{_IN_TENSORFLOW}.callbacks_v1", _closed_board)
    hooking.when_imported("tf_keras.src.distribute.worker_training_state", _delete_backup_once)


# Saves


def _saved_by(function: Any) -> Any:
    """A function or method of a model and a path, as Keras's are."""

    def path(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        return filepath

    return saves.saves(function, path)


def _save_once(module: ModuleType) -> None:
    for name in ("save_model", "save_weights"):
        hooking.wrap(module, name, _saved_by)


def _export_once(module: ModuleType) -> None:
    """Model.export; an ExportArchive of the script's own writes through tf.saved_model.save."""
    hooking.wrap(module, "Model.export", _saved_by)


# Restores


def _notice_restores(module: ModuleType) -> None:
    """load_weights; what load_model makes is new, and is synchronized as such."""

    def noticed(function: Any) -> Any:
        def load_weights(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
            result = function(model, filepath, *args, **kwargs)
            found = [
                *model.weights,
                *initial_broadcast.optimizer_variables(getattr(model, "optimizer", None)),
            ]
            initial_broadcast.state_changed(f"load_weights({str(filepath)!r})", found)
            return result

        return load_weights

    hooking.wrap(module, "load_weights", noticed)


# Messages and progress bars


def _print_once(module: ModuleType) -> None:
    if saves.left_to_rank_0():
        hooking.wrap(module, "print_msg", _nothing)


def _print_summaries(module: Any) -> None:
    """model.summary() is the script's own print, on every rank."""
    if saves.left_to_rank_0():
        print_msg = getattr(*hooking.find(module, "io_utils.print_msg")).__wrapped__
        module.io_utils = types.SimpleNamespace(**{**vars(module.io_utils), "print_msg": print_msg})


# Callbacks


def _pass_callbacks(module: ModuleType) -> None:
    """All ranks of a fit call their callbacks at the same places."""

    def passing(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            with saves.passing(f"callbacks {next(_callbacks)}"):
                return function(*args, **kwargs)

        return call

    for name in _SAVING:
        hooking.wrap(module, f"CallbackList.{name}", passing)


def _nothing(function: Any) -> Any:
    def do_nothing(*args: Any, **kwargs: Any) -> None:
        pass

    return do_nothing


def _silent_files(module: Any) -> None:
    """The module's file_utils reads as ever, and changes nothing on disk."""
    if saves.left_to_rank_0():
        names = dict(vars(getattr(*hooking.find(module, "file_utils"))))
        module.file_utils = types.SimpleNamespace(**names)
        for name in names.keys() & _CHANGES:  # an older version has fewer
            hooking.wrap(module, f"file_utils.{name}", _nothing)
        hooking.wrap(module, "file_utils.File", _silent_open)


def _silent_open(function: Any) -> Any:
    def silent(path: Any, mode: str = "r") -> Any:
        return function(path if mode.startswith("r") else os.devnull, mode)

    return silent


def _silent_log(module: ModuleType) -> None:
    """CSVLogger: its rows go nowhere; the file counts as saved when the training ends."""

    def path(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.filename

    def closes(function: Any) -> Any:
        return saves.saves(function, path, result=function)

    hooking.wrap(module, "CSVLogger.on_train_end", closes)
    if not saves.left_to_rank_0():
        return

    def nowhere(function: Any) -> Any:
        def on_train_begin(self: Any, *args: Any, **kwargs: Any) -> None:
            filename, self.filename = self.filename, os.devnull
            try:
                function(self, *args, **kwargs)
            finally:
                self.filename = filename

        return on_train_begin

    hooking.wrap(module, "CSVLogger.on_train_begin", nowhere)


def _silent_board(module: ModuleType) -> None:
    """TensorBoard: its event files and profiles are tf.summary's; this is projector_config.pbtxt.

    With that gone, and the writers silent, nothing but `set_model` is left that makes folders.
    """
    _closed_board(module)
    if saves.left_to_rank_0():
        hooking.wrap(module, "TensorBoard._configure_embeddings", _nothing)


def _closed_board(module: ModuleType) -> None:
    """TensorBoard: its folder counts as saved when the training ends."""

    def path(self: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, "log_dir", None)

    def closes(function: Any) -> Any:
        return saves.saves(function, path, result=function)

    hooking.wrap(module, "TensorBoard.on_train_end", closes)


def _save_training_once(module: ModuleType) -> None:
    """BackupAndRestore: weights, then their epoch; the folder is removed at the end."""
    _silent_files(module)
    hooking.wrap(module, "BackupAndRestore._save_model", saves.tells_at_end)
    hooking.wrap(module, "BackupAndRestore._save_model", _whole_folder)

    def path(self: Any, logs: Any = None) -> str:
        return f"{self.backup_dir} (end of training)"

    def result(self: Any, logs: Any = None) -> None:
        names.remove(os.fspath(self.backup_dir))

    hooking.wrap(module, "BackupAndRestore.on_train_end", lambda f: saves.saves(f, path, result))


def _whole_folder(function: Any) -> Any:
    """Beside the weights: the epoch that they are of, and those before them."""

    def save(self: Any, *args: Any, **kwargs: Any) -> None:
        function(self, *args, **kwargs)
        own = os.path.abspath(os.fspath(self.backup_dir))
        theirs = names.of_rank_0(own)
        if theirs != own:
            names.stand_for(own, theirs, kept="")

    return save


def _save_orbax_once(module: ModuleType) -> None:
    def path(self: Any, step: int, logs: Any = None) -> str:
        return os.path.join(self.directory, str(step))

    hooking.wrap(module, "OrbaxCheckpoint._save_checkpoint", lambda f: saves.saves(f, path))


_KERAS_CALLBACKS = {
    "model_checkpoint": _silent_files,
    "backup_and_restore": _save_training_once,
    "csv_logger": _silent_log,
    "tensorboard": _silent_board,
    "orbax_checkpoint": _save_orbax_once,
}


def _tf_keras_callbacks(module: ModuleType) -> None:
    _silent_log(module)
    _silent_board(module)


def _delete_backup_once(module: ModuleType) -> None:
    """tf_keras's BackupAndRestore, whose CheckpointManager writes on rank 0 only."""

    def path(self: Any) -> str:
        return f"{self.write_checkpoint_manager.directory} (end of training)"

    def result(self: Any) -> None:
        names.remove(os.fspath(self.write_checkpoint_manager.directory))

    hooking.wrap(
        module, "WorkerTrainingState.delete_backup", lambda f: saves.saves(f, path, result)
    )


# What training goes on from


def _agree_on_backup(module: ModuleType) -> None:
    """BackupAndRestore goes on, on all ranks, from where rank 0 does."""

    def agreed(function: Any) -> Any:
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
                        f"BackupAndRestore failed on rank {rank} for '{self.backup_dir}': "
                        f"{theirs['error']}"
                    )
            if any(theirs != everyone[0] for theirs in everyone):
                _go_on_from(self, everyone[0])
                initial_broadcast.state_changed(f"BackupAndRestore({str(self.backup_dir)!r})")

        return on_train_begin

    hooking.wrap(module, "BackupAndRestore.on_train_begin", agreed)


def _progress(callback: Any) -> dict[str, Any]:
    """Where this rank would go on from: Keras 3's epoch, or tf_keras's counters."""
    state = getattr(callback, "_training_state", None)
    if state is None:
        model = callback.model
        epoch = getattr(model, "_initial_epoch", None)
        built = bool(getattr(model.optimizer, "built", False))
        return {"epoch": None if epoch is None else int(epoch), "built": built}
    return {name: int(variable.numpy()) for name, variable in _counters(state).items()}


def _go_on_from(callback: Any, progress: dict[str, Any]) -> None:
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
    """The last numbers the name of the next backup, so it must be the same on all ranks."""
    return {
        "epoch": state._ckpt_saved_epoch,
        "batch": state._ckpt_saved_batch,
        "steps": state._model._train_counter,
        "saves": state.read_checkpoint_manager.checkpoint.save_counter,
    }
