"""Attributes replaced in Python when the engine starts, before TensorFlow's libraries load."""

from __future__ import annotations

from tensorflow.mpi._src.interpose.replacement_table import ALWAYS, How, Row
from tensorflow.mpi._src.lifecycle import ends, engine

_ENDS = "tf/runtime/test_errors.py"

# fmt: off
PROCESS = (
    Row("sys:excepthook", How.WRAP, ends.noting_uncaught,
        "uncaught exceptions are reported to other ranks", _ENDS, ALWAYS),
    Row("threading:excepthook", How.WRAP, ends.noting_failed_threads,
        "a rank fails if a training thread fails", _ENDS, ALWAYS),
    Row("builtins:SystemExit.code", How.WRAP, ends.noting_code,
        "other ranks get the exit code before Python exits", _ENDS, ALWAYS),
    Row("sys:exit", How.WRAP, ends.leaving_python,
        "creates a SystemExit, whose code can be read", _ENDS, ALWAYS, "python<3.12"),
    Row("os:_exit", How.WRAP, engine.exiting_at_once,
        "with code 0, other ranks may still be working", _ENDS, ALWAYS),
)
