"""What is replaced in Python when the engine starts, before TensorFlow's libraries are loaded."""

from __future__ import annotations

from tensorflow.mpi._src.interpose.rows import ALWAYS, How, Row
from tensorflow.mpi._src.lifecycle import ends

_ENDS = "tf/runtime/test_errors.py"

# fmt: off
PROCESS = (
    Row("sys:excepthook", How.WRAP, ends.noting_uncaught,
        "other ranks hear of an exception that nobody caught", _ENDS, ALWAYS),
    Row("threading:excepthook", How.WRAP, ends.noting_failed_threads,
        "a rank fails with a thread that trains", _ENDS, ALWAYS),
    Row("builtins:SystemExit.code", How.WRAP, ends.noting_code,
        "other ranks hear of an exit code before Python ends", _ENDS, ALWAYS),
    Row("sys:exit", How.WRAP, ends.leaving_python,
        "it makes a SystemExit, whose code is read", _ENDS, ALWAYS, "python<3.12"),
)
