"""What tf.data writes: caches and snapshots are each rank's own, saved datasets rank 0's.

A cache is written as it is read, by whoever reads it, and TensorFlow lets one process write it. So
rank 0's is the script's file, and the others write beside it, in a folder that goes when they end.
One that was complete before is read by all.
"""

from __future__ import annotations

import atexit
import glob
import os
import shutil
import tempfile
from typing import Any

from tensorflow.mpi._src.files import saves
from tensorflow.mpi._src.runtime import group

_folders: dict[str, str] = {}  # path that the script gave -> this rank's folder for it


def own_cache(cache: Any) -> Any:
    """tf.data's _cache, in a folder of this rank's."""

    def cached(dataset: Any, filename: Any, name: Any) -> Any:
        import tensorflow as tf

        text = _text(filename)
        if not text or _is_whole(text):
            return cache(dataset, filename, name)
        made = cache(dataset, os.path.join(_folder(text), os.path.basename(text)), name)
        # Where it lies is another place on each rank, and tells nothing of its elements.
        made._filename = tf.convert_to_tensor(filename, dtype=tf.string)
        return made

    return cached


def _is_whole(path: str) -> bool:
    """Whether a cache is there. TensorFlow writes its index before it removes what locks it."""
    locked = glob.glob(f"{glob.escape(path)}_*.lockfile")
    return os.path.exists(f"{path}.index") and not locked


def own_snapshot(snapshot: Any) -> Any:
    """tf.data's _snapshot, in a folder of this rank's."""

    def taken(dataset: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        text = _text(path)
        if text and not glob.glob(f"{glob.escape(text)}/*/snapshot.metadata"):
            path = _folder(text)
        return snapshot(dataset, path, *args, **kwargs)

    return taken


def _text(path: Any) -> str | None:
    """A path on this machine; None for none, for a tensor of a graph, and for remote files."""
    if not saves.left_to_rank_0():
        return None  # a forked child, which writes its own files
    if hasattr(path, "_numpy_internal"):
        path = path.numpy()
    if not isinstance(path, (str, bytes, os.PathLike)):
        return None
    text = os.fsdecode(path)
    return None if "://" in text else text


def _folder(path: str) -> str:
    """Beside `path`, where there is room for it, else where temporary files are."""
    path = os.path.abspath(path)
    if path not in _folders:
        prefix = f".{os.path.basename(path)}-of-rank-{group.rank}-"
        try:
            folder = tempfile.mkdtemp(prefix=prefix, dir=os.path.dirname(path))
        except OSError:
            folder = tempfile.mkdtemp(prefix=prefix)
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        _folders[path] = folder
    return _folders[path]


def saved_once(function: Any) -> Any:
    """tf.data's _save: rank 0's."""

    def path(dataset: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        from tensorflow.python.eager import context

        return path if context.executing_eagerly() else dataset  # written when a session runs

    return saves.saves(function, path)
