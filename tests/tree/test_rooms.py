"""The rooms of the C++ code have one order: a file includes only files of rooms below its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ROOT / "tensorflow_patches"
# From the lowest up: a file includes files of its own room and of earlier ones.
CORE = [
    "base",
    "cpu",
    "memory",
    "transport",
    "device",
    "request",
    "observability",
    "gpu",
    "reduction",
    "agreement",
    "relay",
    "recovery",
    "engine",
    "bench",
]
GLUE = [
    "internals",
    "runtime",
    "variables",
    "kernels and extras",
    "xla",
    "registration",
    "c_api",
]
# An extra replaces a kernel of the spine, or part of its work.
_LEVEL = {"kernels": "kernels and extras", "extras": "kernels and extras"}


def _includes(part: str) -> list[tuple[Path, str, str]]:
    """(file, its room, the room of the included file) for each include."""
    folder = PRODUCT / part
    found = []
    for path in sorted(folder.rglob("*")):
        if path.suffix not in (".cc", ".h"):
            continue
        room = _LEVEL.get(path.relative_to(folder).parts[0], path.relative_to(folder).parts[0])
        for match in re.finditer(rf'#include "tensorflow_patches/{part}/(\w+)/', path.read_text()):
            found.append((path, room, _LEVEL.get(match.group(1), match.group(1))))
    return found


@pytest.mark.parametrize(("part", "rooms"), [("core", CORE), ("glue", GLUE)])
def test_rooms_include_only_rooms_below(part: str, rooms: list[str]) -> None:
    found = _includes(part)
    assert {room for _, room, _ in found} <= set(rooms), "a room that this test does not know"
    assert len(found) > 50
    upwards = [
        f"{path.relative_to(ROOT)} includes a file of {included}/"
        for path, room, included in found
        if rooms.index(included) > rooms.index(room)
    ]
    assert upwards == []


def test_core_includes_no_tensorflow_and_glue_no_mpi() -> None:
    for path in (PRODUCT / "core").rglob("*.[ch]*"):
        assert '#include "tensorflow/' not in path.read_text(), path
        mpi = "transport/mpi" in path.as_posix()
        assert mpi or "#include <mpi.h>" not in path.read_text(), path
    for path in (PRODUCT / "glue").rglob("*.[ch]*"):
        assert "#include <mpi.h>" not in path.read_text(), path
