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
from types import ModuleType
from typing import Any

from tensorflow.mpi._src.files import saves
from tensorflow.mpi._src.interpose import hooking
from tensorflow.mpi._src.runtime import group

_OPS = "tensorflow.python.data.ops"
_folders: dict[str, str] = {}  # path that the script gave -> this rank's folder for it


def install() -> None:
    """Called once, when TensorFlow's libraries are loaded."""
    if not saves.shared():
        return
    if group.rank != 0:
        hooking.when_imported(f"{_OPS}.cache_op", _hook_caches)
        hooking.when_imported(f"{_OPS}.snapshot_op", _hook_snapshots)
    hooking.when_imported(f"{_OPS}.save_op", _save_once)


def _hook_caches(module: Any) -> None:
    def own(cache: Any) -> Any:
        def cached(dataset: Any, filename: Any, name: Any) -> Any:
            text = _text(filename)
            if not text or os.path.exists(f"{text}.index"):  # nothing, or it is complete
                return cache(dataset, filename, name)
            made = cache(dataset, os.path.join(_folder(text), os.path.basename(text)), name)
            # Where it lies is another place on each rank, and tells nothing of its elements.
            made._filename = module.ops.convert_to_tensor(filename, dtype=module.dtypes.string)
            return made

        return cached

    hooking.wrap(module, "_cache", own)


def _hook_snapshots(module: ModuleType) -> None:
    def own(snapshot: Any) -> Any:
        def taken(dataset: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
            text = _text(path)
            if text and not glob.glob(f"{glob.escape(text)}/*/snapshot.metadata"):
                path = _folder(text)
            return snapshot(dataset, path, *args, **kwargs)

        return taken

    hooking.wrap(module, "_snapshot", own)


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


def _save_once(module: ModuleType) -> None:
    def path(dataset: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        from tensorflow.python.eager import context

        return path if context.executing_eagerly() else dataset  # written when a session runs

    hooking.wrap(module, "_save", lambda function: saves.saves(function, path))
