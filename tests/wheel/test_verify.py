"""verify accepts the wheel that the builder packs and refuses any other."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from standin import OUR_INFO, Checkout

from wheelbuilder.cli import main
from wheelbuilder.errors import BuildError
from wheelbuilder.layout import Layout
from wheelbuilder.lock import read_lock
from wheelbuilder.verify import compare, layout_of, verify
from wheelbuilder.wheelfile import record

Files = dict[str, bytes]
RECORD = f"{OUR_INFO}/RECORD"
BIG = "tensorflow/big.bin"


def rewrite(wheel: Path, edit: Callable[[Files], object], list_anew: bool = False) -> None:
    """Rewrites the wheel with edited content; with `list_anew`, also updates RECORD."""
    with zipfile.ZipFile(wheel) as archive:
        infos = {info.filename: info for info in archive.infolist()}
        files = {name: archive.read(name) for name in infos}
    edit(files)
    if list_anew:
        rows = {
            n: record.row_of(d) for n, d in files.items() if not n.endswith("/") and n != RECORD
        }
        rows[RECORD] = ("", "")
        files[RECORD] = record.render(rows)
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in files.items():
            archive.writestr(infos.get(name, zipfile.ZipInfo(name)), data, compresslevel=9)


def refused(checkout: Checkout, wheel: Path, match: str) -> None:
    with pytest.raises(BuildError, match=match) as caught:
        verify(checkout.layout, wheel)
    assert "\n" not in str(caught.value)


def test_a_packed_wheel_is_accepted(checkout: Checkout) -> None:
    proof = verify(checkout.layout, checkout.pack())
    assert proof.added == [
        "tensorflow/mpi/__init__.py",
        "tensorflow/mpi/lib/libtensorflow_mpi.so",
        "tensorflow_mpi.pth",
    ]
    assert sorted(proof.changed) == [
        f"{OUR_INFO}/METADATA",
        f"{OUR_INFO}/RECORD",
        f"{OUR_INFO}/WHEEL",
        "tensorflow/__init__.py",
    ]
    assert proof.untouched == 5
    assert proof.lines()[-1] == "3 added, 4 changed, 5 untouched"


def test_a_rewritten_archive_with_the_same_content_is_accepted(checkout: Checkout) -> None:
    wheel = checkout.pack()
    rewrite(wheel, lambda files: None)
    verify(checkout.layout, wheel)


@pytest.mark.parametrize("part", ["raw", "crc"])
def test_a_flipped_bit_in_an_untouched_entry_is_refused(checkout: Checkout, part: str) -> None:
    wheel = checkout.pack()
    with zipfile.ZipFile(wheel) as archive:
        info = archive.getinfo(BIG)
        data_at = info.header_offset + 30 + len(BIG)
        directory_at = archive.start_dir
    data = bytearray(wheel.read_bytes())
    if part == "raw":
        data[data_at + info.compress_size // 2] ^= 1
    else:
        data[data.index(BIG.encode(), directory_at) - 46 + 16] ^= 1
    wheel.write_bytes(data)
    refused(checkout, wheel, f"^{BIG} differs from the official wheel's")


def test_an_untouched_entry_changed_together_with_record_is_refused(checkout: Checkout) -> None:
    wheel = checkout.pack()
    rewrite(wheel, lambda files: files.update({BIG: b"other"}), list_anew=True)
    refused(checkout, wheel, f"^{BIG} differs from the official wheel's")


def test_a_missing_entry_is_refused(checkout: Checkout) -> None:
    wheel = checkout.pack()
    rewrite(wheel, lambda files: files.pop(BIG), list_anew=True)
    refused(checkout, wheel, f"{BIG} of the official wheel is missing")


def test_a_file_missing_from_record_is_refused(checkout: Checkout) -> None:
    wheel = checkout.pack()
    rewrite(wheel, lambda files: files.update({"tensorflow/mpi/extra.py": b""}))
    refused(checkout, wheel, "extra.py is not in RECORD")


def test_a_missing_file_that_record_lists_is_refused(checkout: Checkout) -> None:
    wheel = checkout.pack()
    rewrite(wheel, lambda files: files.pop("tensorflow/mpi/__init__.py"))
    refused(checkout, wheel, "__init__.py is in RECORD but not in the wheel")


def test_a_file_added_outside_our_package_is_refused(checkout: Checkout) -> None:
    wheel = checkout.pack()
    rewrite(wheel, lambda files: files.update({"tensorflow/evil.py": b""}), list_anew=True)
    refused(checkout, wheel, "tensorflow/evil.py was added outside tensorflow/mpi")


@pytest.mark.parametrize(
    "name", ["tensorflow/mpi/__init__.py", "tensorflow/__init__.py", "tensorflow/python/util.py"]
)
def test_a_wrong_hash_in_record_is_refused(checkout: Checkout, name: str) -> None:
    wheel = checkout.pack()

    def edit(files: Files) -> None:
        rows = record.parse(files[RECORD], "")
        rows[name] = record.row_of(b"something else")
        files[RECORD] = record.render(rows)

    rewrite(wheel, edit)
    refused(checkout, wheel, f"^{name} (does not match its hash|has another line) in RECORD")


@pytest.mark.parametrize("name", ["tensorflow/__init__.py", f"{OUR_INFO}/METADATA"])
def test_a_changed_entry_that_differs_from_the_patched_one_is_refused(
    checkout: Checkout, name: str
) -> None:
    wheel = checkout.pack()
    rewrite(wheel, lambda files: files.update({name: files[name] + b"# more\n"}), list_anew=True)
    refused(checkout, wheel, "differs from the one that this checkout produces")


def test_a_wheel_of_another_series_is_refused(checkout: Checkout) -> None:
    wheel = checkout.pack()
    checkout.patch.unlink()
    (checkout.layout.patches / "series").write_text("")
    refused(checkout, wheel, "^tensorflow/__init__.py differs from the official wheel's")


def test_a_local_header_with_another_name_is_refused(checkout: Checkout) -> None:
    wheel = checkout.pack()
    data = wheel.read_bytes()
    wheel.write_bytes(data.replace(b"tensorflow/python/util.py", b"tensorflow/python/evil.py", 1))
    refused(checkout, wheel, "local header of tensorflow/python/util.py has another name")


def test_a_duplicate_entry_is_refused(checkout: Checkout) -> None:
    wheel = checkout.pack()
    with zipfile.ZipFile(wheel, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr(BIG, b"second")
    refused(checkout, wheel, "two entries are named")


def test_a_renamed_wheel_is_refused(checkout: Checkout) -> None:
    wheel = checkout.pack()
    other = wheel.with_name("tensorflow-9.9.0-cp311-cp311-linux_x86_64.whl")
    wheel.rename(other)
    refused(checkout, other, "is not a wheel of tensorflow ….mpi.1.cpu or ….mpi.1.cuda")


def test_an_official_wheel_that_the_lock_does_not_list_is_refused(checkout: Checkout) -> None:
    wheel = checkout.pack()
    with zipfile.ZipFile(checkout.official, "a") as archive:
        archive.writestr("more", b"")
    refused(checkout, wheel, "cpu.lock does not list: delete the file")


def test_the_command_fails_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "x.whl"
    bad.write_bytes(b"not a wheel")
    assert main(["verify", str(bad)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("wheel.py: ") and error.count("\n") == 1


def test_the_real_wheel_is_accepted() -> None:
    """The wheels in wheels/, or the one that TFMPI_TEST_WHEEL names."""
    layout = Layout.of_checkout()
    version = read_lock(layout.lock).our_version
    named = os.environ.get("TFMPI_TEST_WHEEL")
    found = [Path(named)] if named else sorted((layout.root / "wheels").glob(f"*-{version}-*.whl"))
    if not found:
        pytest.skip("no wheel: build/wheel.py make, or set TFMPI_TEST_WHEEL")
    for wheel in found:
        tag = wheel.name.split("-")[2]
        official = f"{layout_of(layout, wheel).flavour.official_name}-*-{tag}-*.whl"
        if not named and not list(layout.official.glob(official)):
            pytest.skip(f"no {official} in {layout.official}")
        proof = verify(layout, wheel)
        assert "tensorflow/mpi/lib/libtensorflow_mpi.so" in proof.added
        own = {name for name in proof.added if not name.startswith("tensorflow/mpi/")}
        assert own == {"tensorflow_mpi.pth"}
        assert proof.untouched > 10000
        assert len(proof.changed) < 30


def test_compare_refuses_an_official_wheel_in_place_of_ours(checkout: Checkout) -> None:
    with pytest.raises(BuildError, match="so its name is wrong"):
        compare(checkout.official, checkout.official, checkout.lock, [], checkout.layout.scratch)
