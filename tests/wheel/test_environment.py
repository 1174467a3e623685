"""What the builder needs from the machine: anything missing is a one-line error with a fix."""

from __future__ import annotations

import errno
import hashlib
import os
import sys
from pathlib import Path

import pytest
from standin import Checkout

from wheelbuilder import make as make_module
from wheelbuilder import process
from wheelbuilder.cli import main
from wheelbuilder.errors import BuildError
from wheelbuilder.inputs import bazel, mpi, official
from wheelbuilder.layout import LIBRARIES, Layout
from wheelbuilder.lock import read_lock
from wheelbuilder.target import Target, describe
from wheelbuilder.wheelfile import elf
from wheelbuilder.wheelfile.elf import Dynamic, symbol_versions
from wheelbuilder.wheelfile.platform_tag import platform_tag, versions_of_wheel

OFFICIAL_TAG = "manylinux_2_27_x86_64"


def script(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def python(path: Path, **facts: object) -> str:
    """A stand-in for an interpreter, which prints these facts."""
    known: dict[str, object] = {
        "version": [3, 11], "implementation": "CPython", "system": "Linux",
        "machine": "x86_64", "bits": 64, "free_threaded": False,
    }  # fmt: skip
    import json

    return script(path / "python", f"cat <<'E'\n{json.dumps(known | facts)}\nE")


def test_describe_defaults_to_the_running_python() -> None:
    assert describe(None) == Target(*sys.version_info[:2])
    assert describe(sys.executable).tag == f"cp{sys.version_info[0]}{sys.version_info[1]}"


@pytest.mark.parametrize("minor", [10, 11, 12, 13])
def test_supported_pythons_are_accepted(tmp_path: Path, minor: int) -> None:
    assert describe(python(tmp_path, version=[3, minor])).tag == f"cp3{minor}"


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"version": [3, 9]}, "is CPython 3.9 on"),
        ({"version": [3, 14]}, "is CPython 3.14 on"),
        ({"implementation": "PyPy"}, "is PyPy 3.11 on"),
        ({"machine": "aarch64"}, "on Linux aarch64"),
        ({"system": "Darwin"}, "on Darwin"),
        ({"bits": 32}, "32-bit"),
        ({"version": [3, 13], "free_threaded": True}, "3.13 .free-threaded."),
    ],
)
def test_unsupported_pythons_are_refused(
    tmp_path: Path, facts: dict[str, object], said: str
) -> None:
    with pytest.raises(BuildError, match=f"{said}.* CPython 3.10 to 3.13 on Linux"):
        describe(python(tmp_path, **facts))


def test_a_missing_or_broken_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="no such Python: give --python"):
        describe(str(tmp_path / "python"))
    with pytest.raises(BuildError, match="does not run: broken: give --python"):
        describe(script(tmp_path / "python", "echo broken; exit 3"))


@pytest.mark.parametrize(
    ("needs", "tag"),
    [
        ({}, OFFICIAL_TAG),
        ({"libc.so.6": {"GLIBC_2.17"}}, OFFICIAL_TAG),
        ({"libc.so.6": {"GLIBC_2.28"}}, "manylinux_2_28_x86_64"),
        ({"libc.so.6": {"GLIBC_2.34"}}, "manylinux_2_34_x86_64"),
        ({"libstdc++.so.6": {"GLIBCXX_3.4.30"}}, "manylinux_2_35_x86_64"),
        ({"libstdc++.so.6": {"GLIBCXX_9.9.9"}}, "linux_x86_64"),
        ({"libmpi.so.40": {"OWN_1.0"}}, OFFICIAL_TAG),
    ],
)
def test_the_platform_tag_follows_the_symbol_versions(needs: dict[str, set[str]], tag: str) -> None:
    assert platform_tag(needs, OFFICIAL_TAG) == tag


def test_the_platform_tag_is_never_older_than_the_official_one() -> None:
    assert platform_tag({"libc.so.6": {"GLIBC_2.28"}}, "manylinux_2_31_x86_64") == (
        "manylinux_2_31_x86_64"
    )
    with pytest.raises(BuildError, match="is not a manylinux"):
        platform_tag({}, "win_amd64")


def test_symbol_versions_of_a_real_program_are_read_and_cached(checkout: Checkout) -> None:
    import zipfile

    shell = Path("/bin/sh").resolve()
    with shell.open("rb") as stream:
        needs = symbol_versions(stream)
    assert any(version.startswith("GLIBC_2") for version in needs["libc.so.6"])
    with zipfile.ZipFile(checkout.official, "a") as archive:
        archive.write(shell, "tensorflow/program")
    cache = checkout.layout.cache / "elf" / "x.json"
    assert versions_of_wheel(checkout.official, cache) == needs
    checkout.official.unlink()
    assert versions_of_wheel(checkout.official, cache) == needs


def library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **facts: object) -> Path:
    good = {
        "soname": "libtensorflow_mpi.so",
        "needed": ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2"),
        "runpath": ("$ORIGIN/../..",),
        "rpath": (),
        "exports": (elf.INTERPOSED[0] + "PK", "tfmpi_rank"),
    }
    dynamic = Dynamic(**(good | facts))  # type: ignore[arg-type]
    monkeypatch.setattr(elf, "read_dynamic", lambda stream: dynamic)
    path = tmp_path / "lib.so"
    path.write_bytes(b"\x7fELF /some/where/file.cc")
    return path


def test_a_correct_library_is_accepted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    elf.check_library(library(monkeypatch, tmp_path), LIBRARIES[0], [b"/else/where"])


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"exports": ("tfmpi_rank", "_ZTIN10tensorflow8OpKernelE")}, "exports _ZTIN10tensorflow8"),
        ({"exports": ()}, "exports nothing"),
        ({"needed": ("libtensorflow_framework.so.2",)}, "is not linked with libtensorflow_cc.so.2"),
        ({"runpath": ("$ORIGIN/../..", "$ORIGIN/../_solib_k8")}, "has RUNPATH .*_solib_k8"),
        ({"runpath": (), "rpath": ("$ORIGIN/../..",)}, "has RUNPATH"),
        ({"soname": "lib.so"}, "has SONAME lib.so"),
        ({}, "contains a path of this machine"),
    ],
)
def test_a_faulty_library_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, facts: dict[str, object], said: str
) -> None:
    path = library(monkeypatch, tmp_path, **facts)
    with pytest.raises(BuildError, match=f"libtensorflow_mpi.so {said}"):
        elf.check_library(path, LIBRARIES[0], [b"/some/where"])


def test_a_lock_with_anything_but_one_pinned_project_is_refused(tmp_path: Path) -> None:
    lock = tmp_path / "cpu.lock"
    good = f"a==1.0 --hash=sha256:{'0' * 64}"
    lock.write_text(good)
    assert read_lock(lock).version == "1.0"
    for text in (
        f"{good} --hash=md5:00",
        "",
        "tensorflow-cpu",
        "a==1.0",
        "a==1.0 --hash=md5:00",
        "a==1 --hash=sha256:00",
    ):
        lock.write_text(text)
        with pytest.raises(BuildError, match="must contain one 'name==version'"):
            read_lock(lock)
    with pytest.raises(BuildError, match="restore it from git"):
        read_lock(tmp_path / "gone")


def test_an_error_is_one_line() -> None:
    assert str(BuildError("one\n  two")) == "one two"


def test_the_real_lock_holds_a_hash_for_each_python() -> None:
    assert len(read_lock(Layout.of_checkout().lock).hashes) == 4


def test_a_wheel_with_a_wrong_hash_is_not_used(checkout: Checkout) -> None:
    checkout.official.write_bytes(b"something else")
    digest = hashlib.sha256(b"something else").hexdigest()
    with pytest.raises(BuildError, match=f"has sha256 {digest}.*: delete the file and run again"):
        official.official_wheel(checkout.layout, checkout.lock, Target(3, 11))


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("ERROR: No matching distribution found for x\n", "pip could not fetch .*: No matching"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES from\n", "does not list: do not use it"),
        ("OSError: [Errno 28] No space left on device\n", "no space left on the disk of"),
        ("/usr/bin/python3: No module named pip\n", "has no pip"),
    ],
)
def test_a_pip_failure_is_reported_and_leaves_no_file(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch, output: str, said: str
) -> None:
    checkout.official.unlink()
    monkeypatch.setattr(process, "run", lambda *args, **options: process.Result(1, output))
    with pytest.raises(BuildError, match=said):
        official.official_wheel(checkout.layout, checkout.lock, Target(3, 11))
    assert list(checkout.layout.official.iterdir()) == []


def test_a_missing_compiler_or_bazel_is_named(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(BuildError, match=r"the C\+\+ compiler gcc is missing: apt-get install"):
        bazel.compiler()
    with pytest.raises(BuildError, match="the program bazel is missing: apt-get install"):
        bazel.build_libraries(checkout.layout)


def test_a_compile_error_is_quoted(
    checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path / "bazel", "echo INFO: x; echo 'a.cc:3:1: error: no such thing'; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(BuildError, match=r"did not build: a.cc:3:1: error: .*/bazel.log$"):
        bazel.build_libraries(checkout.layout)
    script(tmp_path / "bazel", "echo 'as: No space left on device'; exit 1")
    with pytest.raises(BuildError, match="no space left on the disk"):
        bazel.build_libraries(checkout.layout)


def fake_mpicc(directory: Path, version: str, library: str = "libmpi.so") -> None:
    major, minor, release = version.split(".")
    (directory / "include").mkdir(parents=True)
    (directory / "include" / "mpi.h").write_text(
        f"#define OMPI_MAJOR_VERSION {major}\n#define OMPI_MINOR_VERSION {minor}\n"
        f"#define OMPI_RELEASE_VERSION {release}\n"
    )
    (directory / "include" / "unrelated.h").touch()
    (directory / "lib").mkdir()
    (directory / "lib" / library).write_bytes(b"\x7fELF")
    if library != "libmpi.so":
        (directory / "lib" / "libmpi.so").write_text(f"INPUT({library})")
    script(
        directory / "mpicc",
        f"case $1 in --showme:incdirs) echo {directory}/include;; *) echo {directory}/lib;; esac",
    )


def test_the_open_mpi_on_path_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_mpicc(tmp_path / "a", "4.1.4")
    monkeypatch.setenv("PATH", f"{tmp_path / 'a'}:{os.environ['PATH']}")
    found = mpi.find_mpi()
    assert found.name == "Open MPI 4.1.4"
    assert [path.name for path in found.headers()] == ["mpi.h"]
    assert found.library == tmp_path / "a" / "lib" / "libmpi.so"


def test_a_linker_script_is_not_mistaken_for_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_mpicc(tmp_path / "a", "5.0.11", "libmpi.so.40")
    monkeypatch.setenv("PATH", f"{tmp_path / 'a'}:{os.environ['PATH']}")
    assert mpi.find_mpi().library.name == "libmpi.so.40"
    (tmp_path / "a" / "lib" / "libmpi.so.40").unlink()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(BuildError, match="does not lead to an mpi.h"):
        mpi.find_mpi()


def test_an_old_or_other_or_missing_mpi_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    fake_mpicc(tmp_path / "a", "3.1.6")
    monkeypatch.setenv("PATH", f"{tmp_path / 'a'}:{os.environ['PATH']}")
    with pytest.raises(BuildError, match=r"is Open MPI 3.1, older than 4.1.*libopenmpi-dev"):
        mpi.find_mpi()
    script(tmp_path / "a" / "mpicc", "echo unknown option; exit 1")
    with pytest.raises(BuildError, match="mpicc is not Open MPI's"):
        mpi.find_mpi()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BuildError, match="there is no mpicc"):
        mpi.find_mpi()


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "/x"),
            1,
            "no space left on the disk of /x",
        ),
        (OSError(errno.EACCES, "Permission denied", "/x"), 1, "/x: Permission denied"),
        (BuildError("two\nlines"), 1, "two lines"),
        (ModuleNotFoundError("no", name="auditwheel"), 1, "auditwheel is missing from"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_every_failure_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    status: int,
    said: str,
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(make_module, "read_lock", fail)
    assert main(["make"]) == status
    printed = capsys.readouterr().err
    assert printed.startswith("wheel.py: ") and said in printed and printed.count("\n") == 1
