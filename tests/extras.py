"""Loads modules of this tree without TensorFlow; marks tests that need an extra (`needs`).

Ranks inherit the environment of the tests, so `TF_MPI_EXTRAS=none pytest tests/tf` runs the
equality tests without extras.
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
    """tensorflow.mpi.config of this tree, imported without TensorFlow."""
    return load("tensorflow.mpi.config")


def load(name: str) -> ModuleType:
    """A module of this tree's tensorflow.mpi, imported without TensorFlow.

    Its `tf` is a stub, which takes attributes from the real tensorflow when they are used.
    """
    # The builder writes _build_info.py.
    names = ("tensorflow", "tensorflow.mpi", "tensorflow.mpi._build_info")
    loaded = {one: sys.modules.pop(one) for one in list(sys.modules) if one.startswith(names[0])}
    for one in names:
        sys.modules[one] = ModuleType(one)
    vars(sys.modules[names[1]]).update(__path__=[str(PYTHON)], _build_info=sys.modules[names[2]])
    stub = sys.modules[names[0]]

    def attribute_when_used(attribute: str) -> object:
        module = importlib.import_module(names[0])
        if module is stub:
            raise AttributeError(attribute)
        return getattr(module, attribute)

    vars(stub)["__getattr__"] = attribute_when_used
    try:
        return importlib.import_module(name)
    finally:
        for one in [one for one in sys.modules if one.startswith(names[0])]:
            del sys.modules[one]
        sys.modules.update(loaded)


def is_on(name: str) -> bool:
    """Whether ranks that inherit this environment have the extra switched on."""
    return name in load_config().get("TF_MPI_EXTRAS")


def needs(*names: str) -> pytest.MarkDecorator:
    """A mark that skips a test if the environment switches off one of these extras."""
    missing = [name for name in names if not is_on(name)]
    asked = os.environ.get("TF_MPI_EXTRAS", "all")
    return pytest.mark.skipif(
        bool(missing), reason=f"TF_MPI_EXTRAS={asked} switches off {', '.join(missing)}"
    )
