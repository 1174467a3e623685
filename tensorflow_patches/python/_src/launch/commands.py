"""`python -m tensorflow.mpi commands`: writes the commands horovodrun and ddlrun next to Python.

The wheel does not install them, because a wheel named TensorFlow has TensorFlow's commands only. An
existing horovodrun belongs to a real Horovod, and is left alone.
"""

from __future__ import annotations

import os
import sys

_MARK = "# Written by: python -m tensorflow.mpi commands"
NAMES = ("horovodrun", "ddlrun")


def main(folder: str | None = None) -> int:
    """Writes the commands, except where another package's command exists; returns 0."""
    folder = folder or os.path.dirname(sys.executable)
    for name in NAMES:
        path = os.path.join(folder, name)
        if os.path.exists(path) and not _is_ours(path):
            print(
                f"{path} belongs to another package and was not replaced; use python -m "
                f"tensorflow.mpi {name} instead"
            )
            continue
        with open(path, "w", encoding="utf-8") as file:
            file.write(
                f'#!/bin/sh\n{_MARK}\nexec "{sys.executable}" -m tensorflow.mpi {name} "$@"\n'
            )
        os.chmod(path, 0o755)
        print(path)
    return 0


def _is_ours(path: str) -> bool:
    with open(path, errors="replace", encoding="utf-8") as file:
        return _MARK in file.read(1000)
