"""The gate: called by `tensorflow/__init__.py` before and after TensorFlow's libraries load.

With the gate closed, `load` returns at once and nothing else of this package is imported: that is
why the other modules are imported inside the functions here.
"""

from __future__ import annotations

import sys

from tensorflow.mpi import config
from tensorflow.mpi._src.runtime import group, hooks

_DOCTOR = ["-m", "doctor"]  # sys.argv while Python looks for the package of `-m tensorflow.mpi`


def load() -> None:
    """Before TensorFlow's libraries: loads ours and starts the engine, if the gate is open.

    Raises ImportError, with what to do, if the ranks cannot be brought together.
    """
    try:
        gate = config.gate()
    except config.ConfigError as error:
        raise ImportError(str(error)) from None
    if not gate.on:
        found = gate.launcher
        if found is not None and (
            "child of process" in gate.reason or "know nothing" in gate.reason and found.rank == 0
        ):
            print(f"tensorflow.mpi: {gate.reason}; no gradients are averaged here", file=sys.stderr)
        return
    from tensorflow.mpi._src.interpose import rows
    from tensorflow.mpi._src.lifecycle import engine
    from tensorflow.mpi._src.replaced import process

    try:
        engine.start(gate)
    except ImportError as error:
        if sys.argv != _DOCTOR or "tensorflow.mpi" not in sys.orig_argv:
            raise
        group.fault = str(error)  # which runs all the same
        return
    rows.install(process.PROCESS)


def verify() -> None:
    """After TensorFlow's libraries: hooks into its Python, and into Keras once that is imported.

    Raises ImportError if the libraries were loaded before ours.
    """
    if hooks.active:
        from tensorflow.mpi._src import rooms

        rooms.install()
