"""verify: accepts what the builder packs, and nothing that differs from it."""

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
    """Writes the wheel again with other content; with `list_anew` RECORD agrees with it."""
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


def test_what_was_packed_is_proven(checkout: Checkout) -> None:
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


def test_a_rewritten_archive_with_the_same_content_passes(checkout: Checkout) -> None:
    wheel = checkout.pack()
    rewrite(wheel, lambda files: None)
    verify(checkout.layout, wheel)


@pytest.mark.parametrize("part", ["raw", "crc"])
def test_a_flipped_byte_of_an_untouched_entry(checkout: Checkout, part: str) -> None:
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


def test_an_untouched_entry_changed_together_with_record(checkout: Checkout) -> None:
    wheel = checkout.pack()
    rewrite(wheel, lambda files: files.update({BIG: b"other"}), list_anew=True)
    refused(checkout, wheel, f"^{BIG} differs from the official wheel's")


def test_a_missing_entry(checkout: Checkout) -> None:
    wheel = checkout.pack()
    rewrite(wheel, lambda files: files.pop(BIG), list_anew=True)
    refused(checkout, wheel, f"{BIG} of the official wheel is missing")


def test_an_unlisted_file(checkout: Checkout) -> None:
    wheel = checkout.pack()
    rewrite(wheel, lambda files: files.update({"tensorflow/mpi/extra.py": b""}))
    refused(checkout, wheel, "extra.py is not in RECORD")


def test_a_listed_file_that_is_not_there(checkout: Checkout) -> None:
    wheel = checkout.pack()
    rewrite(wheel, lambda files: files.pop("tensorflow/mpi/__init__.py"))
    refused(checkout, wheel, "__init__.py is in RECORD and not in the wheel")


def test_a_file_added_elsewhere(checkout: Checkout) -> None:
    wheel = checkout.pack()
    rewrite(wheel, lambda files: files.update({"tensorflow/evil.py": b""}), list_anew=True)
    refused(checkout, wheel, "tensorflow/evil.py is added and not in tensorflow/mpi")


@pytest.mark.parametrize(
    "name", ["tensorflow/mpi/__init__.py", "tensorflow/__init__.py", "tensorflow/python/util.py"]
)
def test_a_wrong_hash_in_record(checkout: Checkout, name: str) -> None:
    wheel = checkout.pack()

    def edit(files: Files) -> None:
        rows = record.parse(files[RECORD], "")
        rows[name] = record.row_of(b"something else")
        files[RECORD] = record.render(rows)

    rewrite(wheel, edit)
    refused(checkout, wheel, f"^{name} has not the")


@pytest.mark.parametrize("name", ["tensorflow/__init__.py", f"{OUR_INFO}/METADATA"])
def test_a_changed_entry_that_the_checkout_does_not_make(checkout: Checkout, name: str) -> None:
    wheel = checkout.pack()
    rewrite(wheel, lambda files: files.update({name: files[name] + b"# more\n"}), list_anew=True)
    refused(checkout, wheel, "is not what this checkout makes")


def test_a_wheel_of_another_series(checkout: Checkout) -> None:
    wheel = checkout.pack()
    checkout.patch.unlink()
    (checkout.layout.patches / "series").write_text("")
    refused(checkout, wheel, "^tensorflow/__init__.py differs from the official wheel's")


def test_a_local_header_with_another_name(checkout: Checkout) -> None:
    wheel = checkout.pack()
    data = wheel.read_bytes()
    wheel.write_bytes(data.replace(b"tensorflow/python/util.py", b"tensorflow/python/evil.py", 1))
    refused(checkout, wheel, "local header of tensorflow/python/util.py has another name")


def test_an_entry_twice(checkout: Checkout) -> None:
    wheel = checkout.pack()
    with zipfile.ZipFile(wheel, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr(BIG, b"second")
    refused(checkout, wheel, "two entries are called")


def test_a_renamed_wheel(checkout: Checkout) -> None:
    wheel = checkout.pack()
    other = wheel.with_name("tensorflow-9.9.0-cp311-cp311-linux_x86_64.whl")
    wheel.rename(other)
    refused(checkout, other, "is not a wheel of tensorflow ….mpi.1.cpu or ….mpi.1.cuda")


def test_an_official_wheel_that_the_lock_does_not_list(checkout: Checkout) -> None:
    wheel = checkout.pack()
    with zipfile.ZipFile(checkout.official, "a") as archive:
        archive.writestr("more", b"")
    refused(checkout, wheel, "cpu.lock does not list: delete the file")


def test_the_command_prints_one_line_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "x.whl"
    bad.write_bytes(b"not a wheel")
    assert main(["verify", str(bad)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("wheel.py: ") and error.count("\n") == 1


def test_the_real_wheel() -> None:
    """The wheel in wheels/, or the one TFMPI_TEST_WHEEL names."""
    layout = Layout.of_checkout()
    version = read_lock(layout.lock).our_version
    named = os.environ.get("TFMPI_TEST_WHEEL")
    found = [Path(named)] if named else sorted((layout.root / "wheels").glob(f"*-{version}-*.whl"))
    if not found:
        pytest.skip("no wheel: build/wheel.py make, or set TFMPI_TEST_WHEEL")
    for wheel in found:
        tag = wheel.name.split("-")[2]
        official = f"{layout_of(layout, wheel).flavour.official}-*-{tag}-*.whl"
        if not named and not list(layout.official.glob(official)):
            pytest.skip(f"no {official} in {layout.official}")
        proof = verify(layout, wheel)
        assert "tensorflow/mpi/lib/libtensorflow_mpi.so" in proof.added
        own = {name for name in proof.added if not name.startswith("tensorflow/mpi/")}
        assert own == {"tensorflow_mpi.pth"}
        assert proof.untouched > 10000
        assert len(proof.changed) < 30


def test_compare_takes_no_official_wheel_for_ours(checkout: Checkout) -> None:
    with pytest.raises(BuildError, match="not the wheel its name says"):
        compare(checkout.official, checkout.official, checkout.lock, [], checkout.layout.scratch)
