"""Lays out the headers and libraries for the C++ in .cache/external as Bazel repositories."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from ..errors import BuildError
from ..files import whole_directory
from ..layout import TENSORFLOW_LIBRARIES, Layout
from ..progress import say
from ..wheelfile.rawzip import RawZip
from .mpi import Mpi

_STAMP = "stamp"
_INCLUDE = "tensorflow/include/"
_CUSTOM_CALLS = "xla/ffi/api/ffi.h"


def stage_tensorflow(layout: Layout, official: Path, sha256: str) -> Path:
    """Unpacks headers and libraries of the official wheel as the Bazel repository @tensorflow."""
    place = layout.external / "tensorflow"
    build_files = layout.root / "third_party" / "tensorflow"
    stamp = f"{sha256} {_digest(build_files)}"
    if _is_staged(place, stamp):
        return place
    say("unpacking TensorFlow's headers and libraries from the official wheel (1 GB)")
    with whole_directory(place) as fresh, RawZip(official) as wheel:
        for name in wheel.files():
            if name.startswith(_INCLUDE):
                _extract(wheel, name, fresh / "include" / name.removeprefix(_INCLUDE))
        for library in TENSORFLOW_LIBRARIES:
            name = f"tensorflow/{library}"
            if name not in wheel.entries:
                raise BuildError(
                    f"{official} has no {name}: adapt build/wheelbuilder to this TensorFlow"
                )
            _extract(wheel, name, fresh / "lib" / library)
        _write_facts(fresh)
        _finish(fresh, build_files, stamp)
    return place


def _write_facts(fresh: Path) -> None:
    """Writes facts.bzl, which tells the glue's BUILD.bazel what this TensorFlow offers."""
    compiled = (fresh / "include" / _CUSTOM_CALLS).exists()
    (fresh / "facts.bzl").write_text(
        '"""Written by build/wheelbuilder/inputs/staging.py."""\n\n'
        "# Whether the wheel has XLA's headers for custom calls; wheels from 2.20 on do.\n"
        f"COMPILED_STEPS = {compiled}\n",
        encoding="utf-8",
    )


def stage_mpi(layout: Layout, mpi: Mpi, mpich: Path) -> Path:
    """Copies headers and libraries of Open MPI, MPICH and the MPI 5 ABI as the repository @mpi."""
    place = layout.external / "mpi"
    build_files = layout.root / "third_party" / "mpi"
    stamp = f"{mpi.identity} {mpich.name} {_digest(build_files)}"
    if _is_staged(place, stamp):
        return place
    with whole_directory(place) as fresh:
        for header in mpi.headers():
            target = fresh / "include" / header.name
            if header.is_dir():
                shutil.copytree(header, target, dirs_exist_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(header, target)
        (fresh / "lib").mkdir()
        shutil.copyfile(mpi.library, fresh / "lib" / "libmpi.so")
        with RawZip(mpich) as wheel:
            _stage_mpich(wheel, fresh)
        _finish(fresh, build_files, stamp)
    return place


def _stage_mpich(wheel: RawZip, fresh: Path) -> None:
    """Unpacks the few files needed from PyPI's package, which keeps them under .data/data."""
    wanted = {
        "include/mpi.h": "mpich/include/mpi.h",
        "include/mpi_proto.h": "mpich/include/mpi_proto.h",
        "lib/libmpi.so.12": "mpich/lib/libmpi.so",
        "include/mpi_abi.h": "abi/include/mpi.h",
        "lib/libmpi_abi.so.1": "abi/lib/libmpi.so",
    }
    data = next((name.partition("/")[0] for name in wheel.files() if ".data/data/" in name), "")
    for source, target in wanted.items():
        name = f"{data}/data/{source}"
        if name not in wheel.entries:
            raise BuildError(f"{wheel.path} has no {name}: adapt build/wheelbuilder to this MPICH")
        _extract(wheel, name, fresh / target)


def _is_staged(place: Path, stamp: str) -> bool:
    try:
        return (place / _STAMP).read_text(encoding="utf-8") == stamp
    except OSError:
        return False


def _finish(fresh: Path, build_files: Path, stamp: str) -> None:
    """Turns the directory into a Bazel repository, for Bazel 4 (WORKSPACE) and 7 (MODULE.bazel)."""
    shutil.copyfile(build_files / "BUILD.staged", fresh / "BUILD.bazel")
    shutil.copyfile(build_files / "MODULE.staged", fresh / "MODULE.bazel")
    (fresh / "WORKSPACE").touch()
    (fresh / _STAMP).write_text(stamp, encoding="utf-8")


def _digest(directory: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(directory.glob("*.staged")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _extract(wheel: RawZip, name: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with wheel.stream(name) as source, target.open("wb") as out:
        shutil.copyfileobj(source, out, 1 << 20)
