"""On which Linux the wheel installs: on every one that the official wheel is for."""

from __future__ import annotations

import pytest

import installed


def test_the_wheel_is_for_the_linux_of_the_official_one() -> None:
    """What our C++ asks of glibc and libstdc++; a newer symbol is to be had in portable/."""
    found = installed.distribution()
    if found is None or "+mpi" not in found.version:
        pytest.fail("the patched wheel is not installed here")
    tags = [line for line in (found.read_text("WHEEL") or "").splitlines() if "Tag: " in line]
    # Older official wheels say 2_17, and ours that are made from them are for every RHEL 8.
    wanted = "manylinux_2_26_x86_64" if installed.is_before("2.20") else "manylinux_2_27_x86_64"
    assert [tag.rpartition("-")[2] for tag in tags] == [wanted]
