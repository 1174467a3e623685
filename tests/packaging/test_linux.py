"""The wheel installs on every Linux that the official wheel supports."""

from __future__ import annotations

import pytest

import installed


def test_the_wheel_supports_every_linux_of_the_official_one() -> None:
    """Checks the glibc and libstdc++ symbols of our C++; define newer ones in portable/."""
    found = installed.distribution()
    if found is None or "+mpi" not in found.version:
        pytest.fail("the patched wheel is not installed here")
    tags = [line for line in (found.read_text("WHEEL") or "").splitlines() if "Tag: " in line]
    # Older official wheels are tagged 2_17; ours built from them are for RHEL 8 and newer.
    wanted = "manylinux_2_26_x86_64" if installed.is_before("2.20") else "manylinux_2_27_x86_64"
    assert [tag.rpartition("-")[2] for tag in tags] == [wanted]
