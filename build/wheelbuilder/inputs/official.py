"""Fetches the wheels that locks pin, with pip, into the cache; checks them at each use."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from .. import process
from ..errors import BuildError, disk_full
from ..files import sha256_of
from ..layout import Layout
from ..lock import Lock, read_lock
from ..progress import say
from ..target import Target


def official_wheel(layout: Layout, lock: Lock, target: Target) -> Path:
    """The path of the official wheel for `target`, checked against the lock's sha256."""
    pattern = f"{lock.official_name}-{lock.version}-{target.tag}-{target.tag}-*.whl"
    return _fetched(layout.official, lock, pattern, _options(target), _note(layout, target))


def unpinned_wheel(layout: Layout, version: str, target: Target) -> Path:
    """The path of the official wheel of a version that no lock pins, fetched if necessary."""
    name, place = layout.flavour.official_name, layout.official
    pattern = f"{name}-{version}-{target.tag}-{target.tag}-*.whl"
    if not (found := sorted(place.glob(pattern))):
        project = f"{name.replace('_', '-')}=={version}"
        _download(place, project, (project,), _options(target), _note(layout, target))
        found = sorted(place.glob(pattern))
    if len(found) != 1:
        raise BuildError(f"{place} holds {len(found)} files {pattern}: delete them and run again")
    return found[0]


def _options(target: Target) -> tuple[str, ...]:
    return ("--implementation", "cp", "--python-version", target.version, "--abi", target.tag)


def _note(layout: Layout, target: Target) -> str:
    return f"for Python {target.version} with pip (about {layout.flavour.megabytes} MB)"


def mpich_wheel(layout: Layout) -> Path:
    """The path of PyPI's MPICH wheel, checked against its lock's sha256."""
    lock = read_lock(layout.mpich_lock)
    pattern = f"{lock.official_name}-{lock.version}-*.whl"
    return _fetched(layout.official, lock, pattern, (), "with pip (13 MB)")


def _fetched(place: Path, lock: Lock, pattern: str, options: tuple[str, ...], note: str) -> Path:
    found = sorted(place.glob(pattern))
    if not found:
        pinned = ("--require-hashes", "-r", str(lock.path))
        _download(place, f"{lock.project}=={lock.version}", pinned, options, note)
        found = sorted(place.glob(pattern))
    if len(found) != 1:
        raise BuildError(f"{place} holds {len(found)} files {pattern}: delete them and run again")
    check_hash(found[0], lock)
    return found[0]


def check_hash(wheel: Path, lock: Lock) -> str:
    """The wheel's sha256; raises BuildError if the lock does not list it."""
    digest = sha256_of(wheel)
    if digest not in lock.hashes:
        raise BuildError(
            f"{wheel} has sha256 {digest}, which {lock.path.name} does not list: delete the file"
            " and run again"
        )
    return digest


def _download(
    place: Path, name: str, wanted: tuple[str, ...], options: tuple[str, ...], note: str
) -> None:
    say(f"fetching {name} {note}")
    place.mkdir(parents=True, exist_ok=True)
    for old in place.glob(".pip-*"):  # left behind by a killed run
        shutil.rmtree(old, ignore_errors=True)
    command = [
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download"),
        *("--no-deps", "--only-binary=:all:", "--progress-bar=off"),
        *options,
    ]
    with tempfile.TemporaryDirectory(prefix=".pip-", dir=place) as scratch:
        result = process.run(
            [*command, "--dest", scratch, *wanted],
            missing=f"{sys.executable} is gone: create the builder's environment again",
        )
        if result.code:
            raise _pip_error(name, result, place)
        for wheel in Path(scratch).glob("*.whl"):
            wheel.rename(place / wheel.name)


def _pip_error(name: str, result: process.Result, place: Path) -> BuildError:
    if process.NO_SPACE in result.output:
        return disk_full(place)
    if "DO NOT MATCH THE HASHES" in result.output:
        return BuildError(
            f"pip fetched a {name} whose sha256 its lock does not list: do not use it;"
            " check the index that pip uses (pip config list)"
        )
    if "No module named pip" in result.output:
        return BuildError(
            f"{sys.executable} has no pip: run {sys.executable} -m ensurepip, then run again"
        )
    line = result.first_line_with("ERROR:").removeprefix("ERROR: ")
    return BuildError(
        f"pip could not fetch {name}: {line}: check the network and pip's index (pip config list)"
    )
