"""The files that we add to the wheel: the Python package, the libraries, and the build info."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from ..errors import BuildError
from ..layout import BUILD_INFO, LIBRARY_DIR, PACKAGE, START_FILE

_SKIPPED_DIRECTORIES = {"__pycache__", "tests"}
_SKIPPED_SUFFIXES = {".pyc", ".pyo", ".bazel"}

_INFO = '''\
"""Build information of this wheel; written by build/wheel.py."""

VERSION = {version!r}
TENSORFLOW_VERSION = {tensorflow!r}
# Hash of everything added and changed; ranks that train together must have the same one.
BUILD_ID = {build_id!r}
# The MPI whose headers the transport was compiled with; the one to run with is found at start-up.
MPI_VERSION = {mpi!r}
'''


def package_files(directory: Path) -> dict[str, Path]:
    """The files of tensorflow_patches/python, by their names in the wheel."""
    found: dict[str, Path] = {}
    for parent, directories, files in os.walk(directory):
        directories[:] = sorted(
            name for name in directories if name not in _SKIPPED_DIRECTORIES and name[0] != "."
        )
        for name in sorted(files):
            path = Path(parent) / name
            if path.suffix in _SKIPPED_SUFFIXES or name[0] == ".":
                continue
            if path.is_symlink():
                raise BuildError(
                    f"{path} is a symbolic link, which a wheel cannot hold: copy the file"
                )
            found[f"{PACKAGE}/{path.relative_to(directory).as_posix()}"] = path
    return found


def payload(package: Path, start_file: Path, libraries: dict[str, Path]) -> dict[str, bytes]:
    """Name in the wheel -> content, for every added file except the build info."""
    added = {name: path.read_bytes() for name, path in package_files(package).items()}
    if f"{PACKAGE}/__init__.py" not in added or BUILD_INFO in added:
        raise BuildError(f"{package} must have an __init__.py, and no file named {BUILD_INFO}")
    added[START_FILE] = start_file.read_bytes()
    for name, path in libraries.items():
        added[f"{LIBRARY_DIR}/{name}"] = path.read_bytes()
    return added


def build_info(version: str, tensorflow: str, mpi: str, content: dict[str, bytes]) -> bytes:
    """The build info module; `content` is every file that was added or changed."""
    digest = hashlib.sha256()
    for name in sorted(content):
        digest.update(f"{name} {hashlib.sha256(content[name]).hexdigest()}\n".encode())
    build_id = digest.hexdigest()[:16]
    return _INFO.format(version=version, tensorflow=tensorflow, mpi=mpi, build_id=build_id).encode()
