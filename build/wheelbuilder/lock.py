"""Lock files: each pins one version of a project and lists the sha256 of every wheel we accept."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from .errors import BuildError
from .layout import DISTRIBUTION, FLAVOURS, Layout

_REQUIREMENT = re.compile(r"^(?P<name>[A-Za-z0-9_.-]+)==(?P<version>[0-9][0-9A-Za-z.]*)$")
_HASH = re.compile(r"^--hash=sha256:(?P<hash>[0-9a-f]{64})$")


@dataclass(frozen=True)
class Lock:
    path: Path
    project: str
    version: str
    hashes: frozenset[str]

    @property
    def official_name(self) -> str:
        """The project's name as spelled in file names."""
        return re.sub(r"[-.]", "_", self.project)

    @property
    def our_version(self) -> str:
        for flavour in FLAVOURS:
            if flavour.official_name == self.official_name:
                return f"{self.version}+{flavour.release}"
        known = " or ".join(flavour.official_name for flavour in FLAVOURS)
        raise BuildError(f"{self.path} pins {self.project}, not {known}: restore it from git")

    @property
    def official_dist_info(self) -> str:
        return f"{self.official_name}-{self.version}.dist-info"

    @property
    def our_dist_info(self) -> str:
        return f"{DISTRIBUTION}-{self.our_version}.dist-info"


def read_lock(path: Path) -> Lock:
    """Reads a requirements file that pins one project by sha256 and contains nothing else."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise BuildError(f"{path}: {error.strerror}: restore it from git") from error
    words = " ".join(line.rstrip("\\") for line in lines if not line.startswith("#")).split()
    requirement = _REQUIREMENT.match(words[0]) if words else None
    hashes = [match["hash"] for word in words[1:] if (match := _HASH.match(word))]
    if not requirement or not hashes or len(hashes) != len(words) - 1:
        raise BuildError(
            f"{path}: must contain one 'name==version' and a --hash=sha256:… for each wheel:"
            " restore it from git"
        )
    return Lock(path, requirement["name"], requirement["version"], frozenset(hashes))


def for_version(layout: Layout, version: str | None) -> Layout:
    """The layout for this TensorFlow, which must have a lock; None means the one developed on."""
    own = read_lock(replace(layout, other_version="").lock).version
    if version is None or version == own:
        return replace(layout, other_version="")
    others = sorted(path.name for path in layout.locks.iterdir() if path.is_dir())
    if version not in others:
        raise BuildError(
            f"no TensorFlow {version} is pinned in {layout.locks}: use one of"
            f" {', '.join([*others, own])}"
        )
    other = replace(layout, other_version=version)
    if not other.lock.exists():
        raise BuildError(f"TensorFlow {version} is pinned only for CPUs: omit --gpu")
    return other
