"""Computes the platform that a wheel's libraries need, from their versioned symbols.

Our libraries are compiled on this machine, so they may need more than the official wheel's tag
promises. Our tag is the oldest of auditwheel's manylinux policies that has every versioned symbol,
but none older than the official wheel's.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from pathlib import Path

from ..errors import BuildError
from .elf import Versions, symbol_versions
from .rawzip import RawZip

_MANYLINUX = re.compile(r"^manylinux_(\d+)_(\d+)_x86_64$")
_PLAIN = "linux_x86_64"


def merge(into: Versions, more: Versions) -> None:
    for library, versions in more.items():
        into.setdefault(library, set()).update(versions)


def versions_of_wheel(wheel: Path, cache: Path) -> Versions:
    """The versions that a wheel's ELF files need, cached in `cache`: reading 1 GB takes seconds."""
    if cache.exists():
        kept: dict[str, list[str]] = json.loads(cache.read_text(encoding="utf-8"))
        return {library: set(versions) for library, versions in kept.items()}
    found: Versions = {}
    cache.parent.mkdir(parents=True, exist_ok=True)
    with RawZip(wheel) as archive:
        for name in archive.files():
            with archive.stream(name) as stream:
                if stream.read(4) != b"\x7fELF":
                    continue
            merge(found, _versions_of_entry(archive, name, cache.parent))
    part = cache.with_suffix(".part")
    part.write_text(json.dumps({key: sorted(found[key]) for key in sorted(found)}), "utf-8")
    part.replace(cache)
    return found


def _versions_of_entry(archive: RawZip, name: str, scratch: Path) -> Versions:
    with tempfile.TemporaryFile(dir=scratch) as unpacked, archive.stream(name) as stream:
        shutil.copyfileobj(stream, unpacked, 1 << 20)
        unpacked.seek(0)
        return symbol_versions(unpacked)


def platform_tag(needs: Versions, official: str) -> str:
    """The platform tag for these needs; at least the official wheel's own tag."""
    from auditwheel.architecture import Architecture
    from auditwheel.libc import Libc
    from auditwheel.policy import WheelPolicies

    floor = _MANYLINUX.match(official)
    if not floor:
        raise BuildError(f"the official wheel's platform {official} is not a manylinux_X_Y_x86_64")
    policies = WheelPolicies(libc=Libc.GLIBC, arch=Architecture.x86_64)
    name: str = policies.versioned_symbols_policy(needs).name
    need = _MANYLINUX.match(name)
    if not need:
        # Newer than every policy of auditwheel's: the wheel runs here, perhaps nowhere else.
        return _PLAIN
    return max(official, name, key=_glibc)


def _glibc(name: str) -> tuple[int, int]:
    match = _MANYLINUX.match(name)
    assert match
    return int(match[1]), int(match[2])
