"""Makes `import tensorflow` and the exit cheaper in processes that launch.py starts with --pool.

The import creates many objects that stay alive, and Python's garbage collector would traverse them
again and again. So there is no collection during the import, and later ones omit these objects:
those at Python's exit would take a third of the time of the import. A rank would include them again
at its exit (ends.py).
"""

from __future__ import annotations

import gc
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Import:
    """Placed on sys.meta_path until TensorFlow is imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def without_collections(module: ModuleType) -> None:
                gc.disable()
                try:
                    execute(module)
                finally:
                    gc.freeze()
                    gc.unfreeze = lambda: None
                    gc.enable()

            spec.loader.exec_module = without_collections  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Import())
