"""make rebuilds the wheel only when an input changed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from standin import Checkout

from wheelbuilder.inputs.mpi import Mpi
from wheelbuilder.make import digest_of_inputs, made_before, remember
from wheelbuilder.target import Target


@pytest.fixture
def mpi(tmp_path: Path) -> Mpi:
    (tmp_path / "mpi").mkdir()
    (tmp_path / "mpi" / "mpi.h").write_text("one")
    (tmp_path / "mpi" / "libmpi.so").write_text("two")
    return Mpi((5, 0, 11), tmp_path / "mpi", (), tmp_path / "mpi" / "libmpi.so")


def digest(checkout: Checkout, mpi: Mpi, minor: int = 11, compiler: str = "gcc 12") -> str:
    return digest_of_inputs(checkout.layout, checkout.lock, Target(3, minor), mpi, compiler)


def test_the_digest_changes_with_every_input(checkout: Checkout, mpi: Mpi) -> None:
    first = digest(checkout, mpi)
    assert digest(checkout, mpi) == first
    seen = {first}
    seen.add(digest(checkout, mpi, minor=12))
    seen.add(digest(checkout, mpi, compiler="gcc 13"))
    seen.add(digest(checkout, replace(mpi, version=(4, 1, 4))))
    (mpi.include / "mpi.h").write_text("other")
    seen.add(digest(checkout, mpi))
    for name in (
        "tensorflow_patches/patches/series",
        "tensorflow_patches/core/a.cc",
        "tensorflow_patches/python/a.py",
        "third_party/tensorflow/BUILD.staged",
        "build/wheelbuilder/make.py",
        ".bazelrc",
        "WORKSPACE",
    ):
        path = checkout.layout.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("# changed\n")
        seen.add(digest(checkout, mpi))
    assert len(seen) == 12


def test_the_digest_ignores_caches(checkout: Checkout, mpi: Mpi) -> None:
    first = digest(checkout, mpi)
    cache = checkout.layout.root / "tensorflow_patches" / "python" / "__pycache__"
    cache.mkdir(parents=True)
    (cache / "a.pyc").write_bytes(b"")
    assert digest(checkout, mpi) == first


def test_a_wheel_is_reused_only_while_it_is_unchanged(checkout: Checkout, tmp_path: Path) -> None:
    memory = tmp_path / "memory.json"
    assert made_before(memory, "inputs", checkout.out) is None
    wheel = checkout.pack()
    remember(memory, "inputs", wheel)
    assert made_before(memory, "inputs", checkout.out) == wheel
    assert made_before(memory, "others", checkout.out) is None
    assert made_before(memory, "inputs", tmp_path) is None

    os.utime(wheel, (1, 1))
    assert made_before(memory, "inputs", checkout.out) == wheel
    data = bytearray(wheel.read_bytes())
    data[100] ^= 1
    wheel.write_bytes(data)
    assert made_before(memory, "inputs", checkout.out) is None
    wheel.write_bytes(data[:-1])
    assert made_before(memory, "inputs", checkout.out) is None
    memory.write_text("{")
    assert made_before(memory, "inputs", checkout.out) is None


def test_a_wheel_for_another_platform_replaces_the_previous_one(
    checkout: Checkout, tmp_path: Path
) -> None:
    memory = tmp_path / "memory.json"
    remember(memory, "one", checkout.pack(glibcxx="GLIBCXX_3.4.20"))
    newer = checkout.pack()
    remember(memory, "two", newer)
    assert list(checkout.out.iterdir()) == [newer]
