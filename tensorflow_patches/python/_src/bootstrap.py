"""The entry points that `tensorflow/__init__.py` calls before and after the libraries load.

With averaging off, `load` returns immediately and imports nothing else of this package; so other
modules are imported inside the functions here.
"""

from __future__ import annotations

import sys

from tensorflow.mpi import config
from tensorflow.mpi._src.runtime import group, hooks

_DOCTOR = ["-m", "doctor"]  # sys.argv while Python looks for the package of `-m tensorflow.mpi`


def load() -> None:
    """Called before TensorFlow's libraries: loads ours and starts the engine if averaging is on.

    Raises ImportError, which says what to do, if the ranks cannot be connected.
    """
    try:
        gate = config.gate()
    except config.ConfigError as error:
        raise ImportError(str(error)) from None
    if not gate.on:
        if gate.warns:
            print(f"tensorflow.mpi: {gate.reason}; no gradients are averaged here", file=sys.stderr)
        return
    from tensorflow.mpi._src.interpose import replacement_table
    from tensorflow.mpi._src.lifecycle import engine
    from tensorflow.mpi._src.replaced import process

    try:
        engine.start(gate)
    except ImportError as error:
        if sys.argv != _DOCTOR or "tensorflow.mpi" not in sys.orig_argv:
            raise
        group.fault = str(error)  # the doctor still runs, and reports it
        return
    replacement_table.install(process.PROCESS)


def verify() -> None:
    """Called after TensorFlow's libraries have loaded: hooks into its Python modules, and into
    Keras once that is imported.

    Raises ImportError if the libraries were loaded before ours.
    """
    if hooks.active:
        from tensorflow.mpi._src import rooms

        rooms.install()
