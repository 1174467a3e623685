"""`python -m tensorflow.mpi commands`: horovodrun and ddlrun as commands beside this Python.

A wheel of TensorFlow's name has TensorFlow's commands alone; and a horovodrun that is there already
is a real Horovod's, and stays.
"""

from __future__ import annotations

import os
import sys

_MARK = "# Written by: python -m tensorflow.mpi commands"
NAMES = ("horovodrun", "ddlrun")


def main(folder: str | None = None) -> int:
    """Writes those that are not there; 0 if all are, or are another's."""
    folder = folder or os.path.dirname(sys.executable)
    for name in NAMES:
        path = os.path.join(folder, name)
        if os.path.exists(path) and not _is_ours(path):
            print(f"{path} is another's, and stays: python -m tensorflow.mpi {name} is ours")
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
