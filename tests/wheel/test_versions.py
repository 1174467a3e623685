"""Older versions of TensorFlow: their locks, their variants of patches, and their wheels."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from packaging.version import Version
from standin import INIT, PATCH, VERSION, Checkout, write_official

from wheelbuilder import release as release_module
from wheelbuilder.errors import BuildError
from wheelbuilder.files import sha256_of
from wheelbuilder.inputs.mpi import Mpi
from wheelbuilder.inputs.staging import stage_tensorflow
from wheelbuilder.layout import TENSORFLOW_LIBRARIES, Layout
from wheelbuilder.lock import for_version, read_lock
from wheelbuilder.refresh import refresh
from wheelbuilder.release import check_platform
from wheelbuilder.series import Fit, apply_patch, apply_series, read_series
from wheelbuilder.target import Target
from wheelbuilder.verify import layout_of
from wheelbuilder.wheelfile.metadata import edit_wheel, wheel_tag

ROOT = Path(__file__).resolve().parents[2]


def pin(checkout: Checkout, version: str) -> Layout:
    text = checkout.layout.lock.read_text().replace(VERSION, version)
    folder = checkout.layout.locks / version
    folder.mkdir()
    (folder / "cpu.lock").write_text(text)
    return for_version(checkout.layout, version)


def vary(checkout: Checkout, folder: str, line: str) -> None:
    text = PATCH.replace("import tensorflow.mpi", line)
    (checkout.layout.patches / folder).mkdir()
    (checkout.layout.patches / folder / checkout.patch.name).write_text(text)


def test_each_version_has_its_own_lock(checkout: Checkout) -> None:
    layout = pin(checkout, "9.7.2")
    assert read_lock(layout.lock).our_version == "9.7.2+mpi.1.cpu"
    assert for_version(layout, None) == for_version(layout, VERSION) == checkout.layout
    with pytest.raises(BuildError, match="no TensorFlow 9.8.0 is pinned .* one of 9.7.2, 9.9.0"):
        for_version(layout, "9.8.0")
    gpu = dataclasses.replace(
        checkout.layout, flavour=dataclasses.replace(layout.flavour, name="gpu")
    )
    shutil.copy(checkout.layout.lock, gpu.lock)
    with pytest.raises(BuildError, match="9.7.2 is pinned only for CPUs: omit --gpu"):
        for_version(gpu, "9.7.2")


def test_the_layout_follows_the_version_in_the_wheels_name(checkout: Checkout) -> None:
    layout = pin(checkout, "9.7.2")
    wheel = Path("tensorflow-9.7.2+mpi.1.cpu-cp311-cp311-manylinux_2_27_x86_64.whl")
    assert layout_of(checkout.layout, wheel) == layout


@pytest.mark.parametrize(
    ("version", "line"),
    [
        ("", "import tensorflow.mpi"),
        ("9.9.1", "import tensorflow.mpi"),
        ("9.8.0", "import of_9_8"),
        ("9.7.2", "import of_9_8"),
        ("9.6.0", "import of_9_6"),
        ("9.5.3", "import of_9_6"),
        ("9.10.0", "import tensorflow.mpi"),
    ],
)
def test_a_variant_applies_to_its_version_and_older_ones(
    checkout: Checkout, version: str, line: str
) -> None:
    vary(checkout, "9.8", "import of_9_8")
    vary(checkout, "9.6", "import of_9_6")
    [patch] = read_series(checkout.layout.patches, version)
    assert f"+{line}\n" in patch.diff and patch.name == checkout.patch.name


def test_a_variant_of_no_patch_in_the_series_is_refused(checkout: Checkout) -> None:
    vary(checkout, "9.8", "import x")
    variant = checkout.layout.patches / "9.8" / checkout.patch.name
    variant.rename(variant.with_name("0009-nothing.patch"))
    with pytest.raises(BuildError, match="0009-nothing.patch is not a variant of a patch"):
        read_series(checkout.layout.patches)


def test_lines_may_move_in_another_version_but_not_change(checkout: Checkout) -> None:
    patches, scratch = read_series(checkout.layout.patches), checkout.layout.scratch
    moved = "# one line more\n" + INIT
    made = apply_series(patches, lambda name: moved.encode(), scratch, may_move=True)
    expected = moved.replace("line_20", "import tensorflow.mpi\nline_20", 1)
    assert made == {"tensorflow/__init__.py": expected.encode()}
    with pytest.raises(BuildError, match="does not apply exactly"):
        apply_series(patches, lambda name: moved.encode(), scratch)
    changed = INIT.replace("line_17 =", "changed =")
    with pytest.raises(BuildError, match="does not apply"):
        apply_series(patches, lambda name: changed.encode(), scratch, may_move=True)


def test_refresh_refuses_another_version(checkout: Checkout) -> None:
    layout = pin(checkout, "9.7.2")
    with pytest.raises(BuildError, match="cannot be rewritten for TensorFlow 9.7.2"):
        refresh(layout, Target(3, 11))


def test_a_release_must_install_where_the_official_wheel_does() -> None:
    for platform in ("manylinux_2_17", "manylinux_2_27"):
        check_platform(f"tensorflow-9.9.0+mpi.1.cpu-cp311-cp311-{platform}_x86_64.whl")
    for platform in ("manylinux_2_28_x86_64", "manylinux_3_0_x86_64", "linux_x86_64"):
        with pytest.raises(BuildError, match="needs a newer glibc .* tensorflow_patches/portable"):
            check_platform(f"tensorflow-9.9.0+mpi.1.cpu-cp311-cp311-{platform}.whl")


def test_a_release_records_its_commit_and_hashes(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout, made = checkout.layout, checkout.pack(glibcxx="GLIBCXX_3.4.24")
    monkeypatch.setattr(release_module, "make", lambda *arguments: made)
    monkeypatch.setattr(release_module, "_source", lambda root: {"commit": "c0ffee"})
    here = Path(__file__)
    mpi = Mpi((5, 0, 11), here.parent, (), here)
    monkeypatch.setattr(release_module, "find_mpi", lambda: mpi)
    monkeypatch.setattr(release_module, "digest_of_inputs", lambda *arguments: "d1")
    monkeypatch.setattr(release_module, "official_wheel", lambda *arguments: checkout.official)
    # The stand-in's lock has one hash, so the release is for one Python.
    listed = release_module.release(layout, checkout.out)
    assert [Path(name).name for name in listed] == [made.name, "provenance.json", "SHA256SUMS"]
    facts = json.loads((checkout.out / "provenance.json").read_text())
    assert facts["commit"] == "c0ffee" and facts["version"] == "9.9.0+mpi.1.cpu"
    [wheel] = facts["wheels"]
    assert wheel["wheel"] == made.name and wheel["sha256"] == sha256_of(made)
    assert wheel["official_sha256"] == sha256_of(checkout.official)
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    assert subprocess.run(check, cwd=checkout.out, check=False).returncode == 0


def test_an_older_name_of_the_platform_does_not_count_as_a_second_tag() -> None:
    data = b"Root-Is-Purelib: false\nTag: cp311-cp311-manylinux_2_17_x86_64\n"
    both = data + b"Tag: cp311-cp311-manylinux2014_x86_64\n\n"
    assert wheel_tag(both) == "cp311-cp311-manylinux_2_17_x86_64"
    new = "cp311-cp311-manylinux_2_27_x86_64"
    assert edit_wheel(both, new) == b"Root-Is-Purelib: false\nTag: " + new.encode() + b"\n\n"
    with pytest.raises(BuildError, match="2 tags instead of one"):
        wheel_tag(data + b"Tag: cp312-cp312-manylinux_2_17_x86_64\n")


@pytest.mark.parametrize("compiled", [True, False])
def test_staging_records_whether_the_wheel_supports_compiled_steps(
    checkout: Checkout, compiled: bool
) -> None:
    import zipfile

    write_official(checkout.official)
    with zipfile.ZipFile(checkout.official, "a") as archive:
        for library in TENSORFLOW_LIBRARIES:
            archive.writestr(f"tensorflow/{library}", b"")
        archive.writestr("tensorflow/include/xla/ffi/api/c_api.h", b"")
        if compiled:
            archive.writestr("tensorflow/include/xla/ffi/api/ffi.h", b"")
    shutil.copytree(ROOT / "third_party/tensorflow", checkout.layout.locks, dirs_exist_ok=True)
    place = stage_tensorflow(checkout.layout, checkout.official, sha256_of(checkout.official))
    assert f"\nCOMPILED_STEPS = {compiled}\n" in (place / "facts.bzl").read_text()


PINNED = sorted(
    (path.parent.name for path in Layout.of_checkout().locks.glob("*/cpu.lock")), key=Version
)


@pytest.mark.parametrize("version", PINNED)
def test_the_series_applies_to_every_pinned_version(version: str, tmp_path: Path) -> None:
    """Checks only wheels that are in the cache; `make` always applies the series."""
    layout = for_version(Layout.of_checkout(), version)
    lock = read_lock(layout.lock)
    pythons = 4 if Version(version) >= Version("2.20") else 3
    assert lock.version == version and len(lock.hashes) == pythons
    patches = read_series(layout.patches, version)
    assert len(patches) == len(read_series(layout.patches))
    found = sorted(layout.official.glob(f"{lock.official_name}-{version}-*.whl"))
    if not found:
        pytest.skip(f"no {lock.official_name} {version} in {layout.official}")
    import zipfile

    with zipfile.ZipFile(found[0]) as wheel:
        for patch in patches:
            for name in patch.files:
                target = tmp_path / name
                if not target.exists():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(wheel.read(name))
            apply_patch(patch, tmp_path, Fit.LINES)


def test_the_documents_list_the_pinned_versions() -> None:
    own = read_lock(Layout.of_checkout().lock).version
    newest_first = sorted([own, *PINNED], key=Version, reverse=True)
    number = r"\d+\.\d+\.\d+(?:rc\d+)?"
    rows = re.findall(rf"^\| ({number}) \| ", (ROOT / "docs/versions.md").read_text(), re.M)
    assert rows == newest_first
    (limit,) = re.findall(r"^- TensorFlow (.*\n?.*)\.$", (ROOT / "README.md").read_text(), re.M)
    assert re.findall(number, limit) == newest_first
