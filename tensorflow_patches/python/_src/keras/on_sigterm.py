"""TF_MPI_SAVE_ON_SIGTERM: if a rank receives SIGTERM in fit, the model is saved before all end.

After each step the ranks exchange whether one has received it, so they end after the same step.
Then each ends as SIGTERM ends a process, which the launcher sees; with exit code 1 if rank 0 could
not save.
"""

from __future__ import annotations

import os
import signal
import threading
import weakref
from types import FrameType
from typing import Any

from tensorflow.mpi import config
from tensorflow.mpi._src.keras import adapters, calls, fit
from tensorflow.mpi._src.messaging import control_plane
from tensorflow.mpi._src.presence import watch
from tensorflow.mpi._src.runtime import group, log

_received = False  # whether this rank has received SIGTERM
# CallbackLists of the fits in progress (they may be nested) that will check for SIGTERM again.
_meeting: weakref.WeakSet[Any] = weakref.WeakSet()


def install() -> None:
    """Called once, when TensorFlow's libraries are loaded."""
    if not is_wanted():
        return
    why = None
    if threading.current_thread() is not threading.main_thread():
        why = "tensorflow was imported on another thread than the main thread. Import it there"
    elif signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        why = "the script handles SIGTERM. Save the model in that handler, or remove it"
    if why is None:
        signal.signal(signal.SIGTERM, _on_signal)
    else:
        log.say(f"TF_MPI_SAVE_ON_SIGTERM has no effect: {why}")


def is_wanted() -> bool:
    return bool(config.get("TF_MPI_SAVE_ON_SIGTERM"))


def _on_signal(number: int, frame: FrameType | None) -> None:
    """A second SIGTERM, or one outside of fit or at its very end, ends this rank at once."""
    global _received
    if _received or not len(_meeting) or not calls.in_fit():
        if not _received:
            log.say("SIGTERM outside of fit: nothing is saved")
        _end()
    _received = True
    log.say("SIGTERM: all ranks finish this step, and rank 0 saves the model")


def _end() -> None:
    watch.declare_exit()
    log.flush()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def _is_ours(callbacks: Any) -> bool:
    """Whether a CallbackList belongs to Keras's fit, and is not driven by the script."""
    return "_tf_mpi_fit" in callbacks.__dict__


def begins(callbacks: Any) -> None:
    if _is_ours(callbacks):
        _meeting.add(callbacks)


def last_meeting(callbacks: Any) -> None:
    _meeting.discard(callbacks)
    stop_together(callbacks)


def stop_together(callbacks: Any) -> None:
    """If a rank has received SIGTERM, saves the model and ends this process. Collective."""
    if not _is_ours(callbacks):
        return
    name = callbacks.__dict__["_tf_mpi_fit"].name
    if not control_plane.any_rank(f"{name}: SIGTERM?", _received):
        return
    model = callbacks.model
    fit.synchronize_states(model, f"{name}: SIGTERM")
    is_saved = group.rank != 0 or _save(model)
    # No rank ends before rank 0 has saved: the launcher would then end rank 0.
    if all(control_plane.headers(f"{name}: saved", is_saved)):
        _end()
    log.flush()
    watch.declare_exit()
    os._exit(1)


def _save(model: Any) -> bool:
    """Saves the model, and says so; returns whether it could."""
    folder = config.get("TF_MPI_SAVE_ON_SIGTERM")
    # In tf_keras only TensorFlow's format, with several files, contains the optimizer.
    is_tf_keras = adapters.is_tf_keras(model)
    path = os.path.join(folder, "model" if is_tf_keras else "model.weights.h5")
    try:
        os.makedirs(folder, exist_ok=True)
        if is_tf_keras:
            model.save_weights(path)
        else:  # if the job is killed while saving, the previous file is intact
            model.save_weights(new := os.path.join(folder, "new.weights.h5"))
            os.replace(new, path)
    except Exception as error:
        log.say(f"SIGTERM: the model could not be saved in '{folder}': {error}; exit code 1")
        return False
    step = int(model.optimizer.iterations)
    log.say(f"SIGTERM: saved model '{model.name}' after step {step}: '{path}'")
    return True
