"""TF_MPI_EXTRAS in tests: what looks for an extra's effect says so.

Ranks inherit the environment of the tests, so `TF_MPI_EXTRAS=none pytest tests/tf` runs the
equality tests without any extra.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

CONFIG = Path(__file__).parent.parent / "tensorflow_patches" / "python" / "config.py"


def load_config() -> ModuleType:
    """tensorflow.mpi.config of this tree, without TensorFlow."""
    spec = importlib.util.spec_from_file_location("tfmpi_config", CONFIG)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


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
