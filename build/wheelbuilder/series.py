"""Reads and applies the series of patches to the official wheel's Python files."""

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
_OFFSET = re.compile(r"^Hunk #\d+ succeeded at \d+ \(offset -?(\d+) line", re.M)
_FAILED = ("FAILED", "malformed", "can't find file", "Reversed", "garbage", "No such file")


@dataclass(frozen=True)
class Patch:
    """A patch: its file name, the header that explains it, the diff, and the files it changes."""

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
                f"{self.name} changes no file: rewrite it as a unified diff with a/ and b/"
            )
        return tuple(found)


def _target(patch: str, old: str, new: str) -> str:
    """The name in the wheel of the file that a pair of --- and +++ lines changes."""
    path = PurePosixPath(new)
    name = "/".join(path.parts[1:])
    if old[:2] != "a/" or new[:2] != "b/" or old[2:] != name or ".." in path.parts:
        raise BuildError(
            f"{patch}: {old} -> {new}: a patch must change a file of the wheel, as a/X -> b/X;"
            " put new files into tensorflow_patches/python"
        )
    if name.startswith(f"{PACKAGE}/") or not name.endswith(".py"):
        raise BuildError(
            f"{patch}: {name} is not a Python file of the official wheel: remove it from the patch"
        )
    return name


def split(name: str, text: str) -> Patch:
    """Splits a patch file into header and diff, which begins at the first --- or diff line."""
    lines = text.splitlines(keepends=True)
    for at, line in enumerate(lines):
        following = lines[at + 1] if at + 1 < len(lines) else ""
        pair = line.startswith("--- ") and following.startswith("+++ ")
        if pair or line.startswith(("diff --git ", "Index: ")):
            return Patch(name, "".join(lines[:at]), "".join(lines[at:]))
    raise BuildError(f"{name} contains no diff: rewrite it as a unified diff with a/ and b/")


def read_series(directory: Path, other_version: str = "") -> list[Patch]:
    """The patches that the series file lists, in its order; none if there is no such file.

    If a patch needs other lines for an older TensorFlow, its variant is in a folder named after the
    newest version that it is for, such as 2.19/.
    """
    series = directory / "series"
    names: list[str] = []
    if series.exists():
        for line in series.read_text(encoding="utf-8").splitlines():
            if name := line.partition("#")[0].strip():
                names.append(name)
    present = {path.name for path in directory.glob("*.patch")}
    if stray := sorted(present.symmetric_difference(names)):
        listed = "is not in the series" if stray[0] in present else "is in the series but missing"
        raise BuildError(f"{directory / stray[0]} {listed}: correct {series}")
    if len(set(names)) != len(names):
        raise BuildError(f"{series} lists a patch twice: remove one line")
    variants = sorted(path for path in directory.glob("*/*.patch") if path.name not in names)
    if variants:
        raise BuildError(
            f"{variants[0]} is not a variant of a patch in the series: rename or remove it"
        )
    paths = [_variant(directory, name, other_version) for name in names]
    return [split(path.name, path.read_text(encoding="utf-8")) for path in paths]


def _variant(directory: Path, name: str, other_version: str) -> Path:
    """The variant for the oldest version that is not older than this one; else the original."""
    if not other_version:
        return directory / name
    variants = {_minor(path.parent.name): path for path in directory.glob(f"*/{name}")}
    wanted = _minor(other_version) or (0, 0)
    fitting = [version for version in variants if version is not None and version >= wanted]
    return variants[min(fitting)] if fitting else directory / name


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
    """Applies the series; returns the files that it changes, by name.

    Each hunk must apply exactly at its line numbers; with `may_move`, at any line numbers.
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
    """How exactly a patch must apply."""

    EXACT = enum.auto()  # its lines match at their line numbers
    LINES = enum.auto()  # its lines match at any line numbers
    FUZZY = enum.auto()  # up to two of the context lines around each change may differ


@dataclass(frozen=True)
class Tried:
    """How far a patch's lines have moved, at most, and the files to which it does not apply."""

    moved: int
    failed: tuple[str, ...]


def try_patch(patch: Patch, tree: Path) -> Tried:
    """Applies a patch, at any line numbers, unless part of it does not apply."""
    absent = tuple(name for name in patch.files if not (tree / name).exists())
    if absent:
        return Tried(0, absent)
    output = _run_patch(patch, tree, Fit.LINES, "--dry-run").output
    _, *parts = re.split(r"^checking file (\S+)\n", output, flags=re.M)
    by_file = zip(parts[::2], parts[1::2], strict=True)
    failed = tuple(name for name, text in by_file if re.search(r"^Hunk .* FAILED", text, re.M))
    if not failed:
        apply_patch(patch, tree, Fit.LINES)
    return Tried(max(map(int, _OFFSET.findall(output)), default=0), failed)


def _run_patch(patch: Patch, tree: Path, fit: Fit, *options: str) -> process.Result:
    fuzz = "2" if fit is Fit.FUZZY else "0"
    return process.run(
        [
            *("patch", "-p1", f"--fuzz={fuzz}", "--batch", "--forward", "--verbose"),
            *("--no-backup-if-mismatch", "--reject-file=-", *options),
        ],
        missing="the program patch is missing: install it (apt-get install patch)",
        cwd=tree,
        env={**os.environ, "LC_ALL": "C"},
        text=patch.diff,
    )


def apply_patch(patch: Patch, tree: Path, fit: Fit) -> bool:
    """Applies one patch to the tree; returns whether every hunk applied at its line numbers."""
    result = _run_patch(patch, tree, fit)
    if result.code:
        line = result.first_line_with(*_FAILED)
        raise BuildError(f"{patch.name} does not apply: {line}: rewrite it for this TensorFlow")
    moved = _MOVED.search(result.output)
    if moved and fit is Fit.EXACT:
        raise BuildError(
            f"{patch.name} does not apply exactly: {moved[0]}: run build/wheel.py refresh, then"
            " review its diff"
        )
    return moved is None
