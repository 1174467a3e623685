"""The series of patches on the official wheel's Python files: read, and applied exactly."""

from __future__ import annotations

import enum
import itertools
import os
import re
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from . import process
from .errors import BuildError
from .layout import PACKAGE

_OLD = re.compile(r"^--- (\S+)(?:\t.*)?$")
_NEW = re.compile(r"^\+\+\+ (\S+)(?:\t.*)?$")
_MOVED = re.compile(r"^Hunk #\d+ succeeded at \d+ .*(?:fuzz|offset).*$", re.M)
_FAILED = ("FAILED", "malformed", "can't find file", "Reversed", "garbage", "No such file")


@dataclass(frozen=True)
class Patch:
    """One patch: its file name, the header that explains it, the diff, and the files it changes."""

    name: str
    header: str
    diff: str

    @property
    def files(self) -> tuple[str, ...]:
        lines = self.diff.splitlines()
        found: dict[str, None] = {}
        for old, new in itertools.pairwise(lines):
            if (before := _OLD.match(old)) and (after := _NEW.match(new)):
                found[_target(self.name, before[1], after[1])] = None
        if not found:
            raise BuildError(
                f"{self.name} changes no file: write it as a unified diff with a/ and b/"
            )
        return tuple(found)


def _target(patch: str, old: str, new: str) -> str:
    """The file that a pair of --- and +++ lines changes, as the wheel names it."""
    path = PurePosixPath(new)
    name = "/".join(path.parts[1:])
    if old[:2] != "a/" or new[:2] != "b/" or old[2:] != name or ".." in path.parts:
        raise BuildError(
            f"{patch}: {old} -> {new}: a patch changes files that the wheel has, as a/X -> b/X;"
            " new files go to tensorflow_patches/python"
        )
    if name.startswith(f"{PACKAGE}/") or not name.endswith(".py"):
        raise BuildError(f"{patch}: {name} is not a Python file of the official wheel")
    return name


def split(name: str, text: str) -> Patch:
    """Header and diff of a patch file; the diff begins at its first --- or diff line."""
    lines = text.splitlines(keepends=True)
    for at, line in enumerate(lines):
        following = lines[at + 1] if at + 1 < len(lines) else ""
        pair = line.startswith("--- ") and following.startswith("+++ ")
        if pair or line.startswith(("diff --git ", "Index: ")):
            return Patch(name, "".join(lines[:at]), "".join(lines[at:]))
    raise BuildError(f"{name} holds no diff: write it as a unified diff with a/ and b/")


def read_series(directory: Path, other_version: str = "") -> list[Patch]:
    """The patches that the series file names, in its order. Without a series there are none.

    For another TensorFlow than the one developed on, a patch whose lines differ there is in a
    folder that is called after the newest version that it is for, as 2.19/.
    """
    series = directory / "series"
    names: list[str] = []
    if series.exists():
        for line in series.read_text(encoding="utf-8").splitlines():
            if name := line.partition("#")[0].strip():
                names.append(name)
    present = {path.name for path in directory.glob("*.patch")}
    if stray := sorted(present.symmetric_difference(names)):
        where = "is not in the series" if stray[0] in present else "is in the series and not there"
        raise BuildError(f"{directory / stray[0]} {where}: correct {series}")
    if len(set(names)) != len(names):
        raise BuildError(f"{series} names a patch twice: remove one line")
    variants = sorted(path for path in directory.glob("*/*.patch") if path.name not in names)
    if variants:
        raise BuildError(f"{variants[0]} is no variant of a patch in the series: correct {series}")
    paths = [_variant(directory, name, other_version) for name in names]
    return [split(path.name, path.read_text(encoding="utf-8")) for path in paths]


def _variant(directory: Path, name: str, other_version: str) -> Path:
    """The oldest variant for this version or a newer one; else the series' own."""
    if not other_version:
        return directory / name
    found = [path for path in directory.glob(f"*/{name}") if _minor(path.parent.name) is not None]
    wanted = _minor(other_version) or (0, 0)
    fitting = {_minor(path.parent.name) or (0, 0): path for path in found}
    newer = [version for version in fitting if version >= wanted]
    return fitting[min(newer)] if newer else directory / name


def _minor(version: str) -> tuple[int, int] | None:
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else None


def touched(patches: Iterable[Patch]) -> list[str]:
    return sorted({name for patch in patches for name in patch.files})


def apply_series(
    patches: list[Patch],
    read: Callable[[str], bytes],
    scratch: Path,
    *,
    may_move: bool = False,
) -> dict[str, bytes]:
    """What the series makes of the files it touches.

    Each hunk must lie where it says, exactly; with `may_move`, its lines may have other numbers.
    """
    names = touched(patches)
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch) as directory:
        tree = Path(directory) / "tree"
        for name in names:
            path = tree / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(read(name))
        for patch in patches:
            apply_patch(patch, tree, Fit.LINES if may_move else Fit.EXACT)
        return {name: (tree / name).read_bytes() for name in names}


class Fit(enum.Enum):
    """How well a patch must fit."""

    EXACT = enum.auto()  # its lines are there, at their numbers
    LINES = enum.auto()  # its lines are there
    FUZZY = enum.auto()  # a line around them may differ


def apply_patch(patch: Patch, tree: Path, fit: Fit) -> bool:
    """Applies one patch to the tree; returns whether every hunk lay exactly where it says."""
    fuzz = "2" if fit is Fit.FUZZY else "0"
    result = process.run(
        [
            *("patch", "-p1", f"--fuzz={fuzz}", "--batch", "--forward", "--verbose"),
            *("--no-backup-if-mismatch", "--reject-file=-"),
        ],
        missing="the program patch is missing: install it (apt-get install patch)",
        cwd=tree,
        env={**os.environ, "LC_ALL": "C"},
        text=patch.diff,
    )
    if result.code:
        line = result.first_line_with(*_FAILED)
        raise BuildError(f"{patch.name} does not apply: {line}: rewrite it for this TensorFlow")
    moved = _MOVED.search(result.output)
    if moved and fit is Fit.EXACT:
        raise BuildError(
            f"{patch.name} does not apply exactly: {moved[0]}: run build/wheel.py refresh, then"
            " read what it changed"
        )
    return moved is None
