"""Finds `horovod` and `ddl` in this package if they are not installed.

`tensorflow_mpi.pth`, which Python's `site` reads at every start, runs this file. If a real Horovod
is installed, a script gets that one. With TF_MPI_COMPAT=1 a script always gets ours, with
TF_MPI_COMPAT=0 never. TensorFlow is imported only when a name is found here.

This file reads the environment itself and imports nothing of this package, because it runs whenever
Python starts; tests/tf/horovod/test_finder.py compares it with config.
"""

import os
import sys

_OLD = {"horovod": "TF_MPI_HOROVOD", "ddl": "TF_MPI_DDL"}  # still read in this version
_FOLDER = os.path.dirname(os.path.abspath(__file__))


class Finder:
    """Placed on sys.meta_path. `first`: names found here even if they are installed."""

    tensorflow_mpi = True  # how install() recognizes a Finder

    def __init__(self, names: set[str], first: set[str]) -> None:
        self.names, self.first = names, first

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> object:
        if fullname not in self.names:
            return None
        import importlib.machinery
        import importlib.util

        if fullname not in self.first:
            installed = importlib.machinery.PathFinder.find_spec(fullname)
            if installed is not None and installed.origin is not None:
                return None
            # Without an origin, it is a plain folder of that name on the path, not a package.
        folder = os.path.join(_FOLDER, fullname)
        return importlib.util.spec_from_file_location(
            fullname, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )


def install() -> None:
    """Called when Python starts, each time that `site` reads our folder."""
    if any(hasattr(finder, "tensorflow_mpi") for finder in sys.meta_path):
        return
    chosen = {
        name: os.environ.get("TF_MPI_COMPAT", os.environ.get(old, "")).strip()
        for name, old in _OLD.items()
    }
    names = {name for name, choice in chosen.items() if choice != "0"}
    first = {name for name in names if chosen[name] == "1"}
    if names:
        sys.meta_path.insert(0, Finder(names, first))  # type: ignore[arg-type]
