"""TF_MPI_EXTRAS in tests: what looks for an extra's effect says so.

Ranks inherit the environment of the tests, so `TF_MPI_EXTRAS=none pytest tests/tf` runs the
equality tests without any extra.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

PYTHON = Path(__file__).parent.parent / "tensorflow_patches" / "python"


def load_config() -> ModuleType:
    """tensorflow.mpi.config of this tree, without TensorFlow."""
    names = ("tensorflow", "tensorflow.mpi", "tensorflow.mpi.config")
    loaded = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith(names)}
    for name in names[:2]:
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name])["__path__"] = [str(PYTHON)]
    try:
        return importlib.import_module(names[2])
    finally:
        for name in [name for name in sys.modules if name.startswith(names)]:
            del sys.modules[name]
        sys.modules.update(loaded)


def is_on(name: str) -> bool:
    """Whether ranks that inherit this environment have the extra."""
    return name in load_config().get("TF_MPI_EXTRAS")


def needs(*names: str) -> pytest.MarkDecorator:
    """Skips a test where the environment leaves out one of these extras."""
    missing = [name for name in names if not is_on(name)]
    asked = os.environ.get("TF_MPI_EXTRAS", "all")
    return pytest.mark.skipif(
        bool(missing), reason=f"TF_MPI_EXTRAS={asked} leaves out {', '.join(missing)}"
    )
