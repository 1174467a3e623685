"""Calls us when a module of Keras is imported: that is after TensorFlow, and perhaps never.

A finder on sys.meta_path lets the stock finders find the module and runs our functions right after
the module's own code, so no file of Keras changes.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

_callbacks: dict[str, list[Callable[[ModuleType], None]]] = {}
_loaded: set[str] = set()


def when_imported(name: str, callback: Callable[[ModuleType], None]) -> None:
    """Calls `callback(module)` once, when the module `name` is loaded; at once if it is already.

    Several callbacks for one module run in the order in which they were registered, on the thread
    that imports it; an exception fails the import.
    """
    module = sys.modules.get(name)
    if module is not None and (name in _loaded or name not in _callbacks):
        callback(module)
        return
    if not _callbacks:
        sys.meta_path.insert(0, _Finder())
    _callbacks.setdefault(name, []).append(callback)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _callbacks:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                _loaded.add(fullname)
                for callback in _callbacks[fullname]:
                    callback(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
