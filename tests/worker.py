"""A process of pool.py: runs the scripts that it is given, one after another.

python tests/worker.py SOCKET ranks|forks
"""

from __future__ import annotations

import gc
import json
import os
import random
import runpy
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent
LEGACY_KERAS = "TF_USE_LEGACY_KERAS"  # TensorFlow reads it when a script first uses tf.keras


def main(address: str, kind: str) -> None:
    rank = os.environ.get("OMPI_COMM_WORLD_RANK", "0")
    import keras  # noqa: F401
    import tensorflow  # noqa: F401

    if kind == "ranks":
        _one_number_of_threads()
    else:
        gc.freeze()  # collections skip the import's objects; in ranks the product does this
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    connection.sendall(rank.encode())
    for line in connection.makefile():
        request = json.loads(line)
        if kind == "ranks":
            connection.sendall(b"%d" % _run(request, rank))
        elif child := os.fork():
            _, status = os.waitpid(child, 0)
            connection.sendall(b"%d" % os.waitstatus_to_exitcode(status))
        else:
            connection.close()
            _enter(request, rank)
            runpy.run_path(request["script"], run_name="__main__")
            return  # ends in the same way as a script


def _enter(request: dict[str, Any], rank: str) -> None:
    """Sets up the process as Python does at the start of a script."""
    folder = Path(request["folder"])
    (folder / f"{rank}.pid").write_text(f"{os.getpid()}\n")
    _redirect(folder / f"{rank}.out", folder / f"{rank}.err")
    sys.argv = [request["script"], *request["args"]]
    sys.path[0] = str(Path(request["script"]).parent)


def _redirect(out: Path, err: Path) -> None:
    for path, stream in ((out, sys.stdout), (err, sys.stderr)):
        stream.flush()
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, stream.fileno())
        os.close(file)


def _run(request: dict[str, Any], rank: str) -> int:
    """Runs a script in this process; returns the exit code that it would have had."""
    state = _State()
    _enter(request, rank)
    code: Any = 0
    try:
        runpy.run_path(request["script"], run_name="__main__")
    except SystemExit as end:
        code = end.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
        code = 1
    if os.environ.get(LEGACY_KERAS) != state.environ.get(LEGACY_KERAS):
        print(
            f"{LEGACY_KERAS} applies to the whole process, which also runs other scripts: do not "
            "pool this one",
            file=sys.stderr,
        )
        code = code or 1
    state.restore()
    sys.stdout.flush()
    sys.stderr.flush()
    return code & 0xFF


class _State:
    """The settings of a process that a script may change."""

    def __init__(self) -> None:
        import numpy as np

        self.environ = dict(os.environ)
        self._folder = os.getcwd()
        self._argv_and_path = list(sys.argv), list(sys.path)
        self._random = random.getstate(), np.random.get_state()
        self._flags = _flags()

    def restore(self) -> None:
        """Restores the settings; unloads modules from the script's folder."""
        import keras
        import numpy as np
        import tensorflow as tf
        from tensorflow.python.eager import context

        os.environ.clear()
        os.environ.update(self.environ)
        os.chdir(self._folder)
        sys.argv, sys.path[:] = self._argv_and_path
        random.setstate(self._random[0])
        np.random.set_state(self._random[1])
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None) or ""
            if Path(file).is_relative_to(TESTS) and name not in ("__main__", "common"):
                del sys.modules[name]
        _restore_flags(self._flags)
        for package in (keras, sys.modules.get("tf_keras")):
            if package is not None:
                package.mixed_precision.set_global_policy("float32")
                package.backend.set_floatx("float32")
                package.backend.clear_session()
        tf.config.run_functions_eagerly(False)
        tf.compat.v1.reset_default_graph()
        context.context()._seed = None
        gc.collect()


# Counters that the product keeps for a script; _flags() includes them.
_COUNTS = ("_eager_steps", "_script_syncs")


def _ours() -> list[Any]:
    return [module for name, module in sys.modules.items() if name.startswith("tensorflow.mpi.")]


def _flags() -> list[tuple[Any, str, Any]]:
    """Flags that the product sets for a script, such as having called a collective."""
    return [
        (module, name, value)
        for module in _ours()
        for name, value in vars(module).items()
        if isinstance(value, bool) or name in _COUNTS
    ]


def _restore_flags(flags: list[tuple[Any, str, Any]]) -> None:
    """Restores `flags`, and lets lines that are printed once be printed again."""
    for module, name, value in flags:
        setattr(module, name, value)
    for module in _ours():
        said = getattr(module, "_logged_keys", None)
        if isinstance(said, set):
            said.clear()


def _one_number_of_threads() -> None:
    """Fixes the number of threads, because TensorFlow accepts it only once per process."""
    import common

    common.single_threaded_ops(inter_op=2)
    common.single_threaded_ops = lambda inter_op=1: None


if __name__ == "__main__":
    main(*sys.argv[1:])
