"""Files of tf.data: each rank writes its own caches and snapshots, rank 0 the saved datasets.

A cache is written by the process that reads the dataset, and TensorFlow allows only one writer. So
rank 0 writes the script's file, and the other ranks write next to it, in a folder that is removed
when they end. All ranks read a cache that was complete before.
"""

from __future__ import annotations

import atexit
import glob
import os
import shutil
import tempfile
from typing import Any

import tensorflow as tf
from tensorflow.mpi._src.files import saves
from tensorflow.mpi._src.runtime import group

_folders: dict[str, str] = {}  # the script's path -> this rank's folder for it


def own_cache(cache: Any) -> Any:
    """Wraps tf.data's _cache, to use a folder of this rank."""

    def cached(dataset: Any, filename: Any, name: Any) -> Any:
        text = _text(filename)
        if not text or _is_whole(text):
            return cache(dataset, filename, name)
        made = cache(dataset, os.path.join(_folder(text), os.path.basename(text)), name)
        # The script's path: the real one differs by rank, and ranks compare their datasets.
        made._filename = tf.convert_to_tensor(filename, dtype=tf.string)
        return made

    return cached


def _is_whole(path: str) -> bool:
    """Whether the cache is complete. TensorFlow writes its index before it removes its lock."""
    locked = glob.glob(f"{glob.escape(path)}_*.lockfile")
    return os.path.exists(f"{path}.index") and not locked


def own_snapshot(snapshot: Any) -> Any:
    """Wraps tf.data's _snapshot, to use a folder of this rank."""

    def taken(dataset: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        text = _text(path)
        if text and not glob.glob(f"{glob.escape(text)}/*/snapshot.metadata"):
            path = _folder(text)
        return snapshot(dataset, path, *args, **kwargs)

    return taken


def _text(path: Any) -> str | None:
    """A local path as text. None on ranks that use the script's path itself (see left_to_rank_0);
    also for no path, a graph tensor, and remote files."""
    if not saves.left_to_rank_0():
        return None
    if hasattr(path, "_numpy_internal"):
        path = path.numpy()
    if not isinstance(path, (str, bytes, os.PathLike)):
        return None
    text = os.fsdecode(path)
    return None if "://" in text else text


def _folder(path: str) -> str:
    """This rank's folder for `path`: next to it if possible, otherwise in the temporary folder."""
    path = os.path.abspath(path)
    if path not in _folders:
        prefix = f".{os.path.basename(path)}-of-rank-{group.rank}-"
        try:
            folder = tempfile.mkdtemp(prefix=prefix, dir=os.path.dirname(path))
        except OSError:
            folder = tempfile.mkdtemp(prefix=prefix)
        atexit.register(_remove, folder, os.getpid())
        _folders[path] = folder
    return _folders[path]


def _remove(folder: str, process: int) -> None:
    """Runs at the exit of this process, and of those that it forks."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def saved_once(function: Any) -> Any:
    """Wraps tf.data's _save, which only rank 0 runs."""

    def path(dataset: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        return path if tf.executing_eagerly() else None  # written when the graph runs

    def result(*args: Any, **kwargs: Any) -> Any:
        return None if tf.executing_eagerly() else tf.no_op("save_dataset")

    return saves.on_rank_0(function, path, result)
