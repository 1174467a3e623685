"""The platform that a wheel's libraries really need, by the symbol versions they ask for.

The official wheel says manylinux_2_27 whatever its libraries need, and ours are compiled here, so
the name is derived: the oldest manylinux policy, as auditwheel knows them, that has every versioned
symbol, and never an older one than the official wheel's.
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
    """What all ELF files of a wheel need. `cache` keeps the answer: reading 1 GB takes seconds."""
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
    """The platform tag for what is needed, not below the official wheel's own tag."""
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
        # Newer than every policy that auditwheel knows: true on this machine only.
        return _PLAIN
    return max(official, name, key=_glibc)


def _glibc(name: str) -> tuple[int, int]:
    match = _MANYLINUX.match(name)
    assert match
    return int(match[1]), int(match[2])
