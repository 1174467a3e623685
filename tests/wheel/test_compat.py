"""`wheel.py compat`: each check on small inputs that pass and on others that fail."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from standin import INIT, PATCH, VERSION, Checkout, write_official

from wheelbuilder import compat, probe, process
from wheelbuilder.cli import main
from wheelbuilder.compat import BREAKS, FITS, MOVED, NOT_RUN, Row
from wheelbuilder.errors import BuildError
from wheelbuilder.files import sha256_of
from wheelbuilder.inputs import bazel
from wheelbuilder.layout import Layout
from wheelbuilder.lock import read_lock
from wheelbuilder.series import read_series, split
from wheelbuilder.target import Target
from wheelbuilder.wheelfile.elf import INTERPOSED

ROOT = Path(__file__).resolve().parents[2]
INIT_FILE, UTIL_FILE = "tensorflow/__init__.py", "tensorflow/python/util.py"
LAST = PATCH.replace("-18,6 +18,7", "-36,6 +36,7").replace("import tensorflow.mpi", "import last")
for _number in (16, 17, 18, 19, 20, 21, 22):
    LAST = LAST.replace(f"line_{_number} = {_number}", f"line_{_number + 17} = {_number + 17}")
UTIL = PATCH.partition("@@")[0].replace(INIT_FILE, UTIL_FILE) + "@@ -1 +1,2 @@\n x = 1\n+y = 2\n"


def verdicts(rows: Iterable[Row]) -> list[tuple[str, str]]:
    return [(row.verdict, row.text) for row in rows]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({INIT_FILE: INIT, UTIL_FILE: "x = 1\n"}, [FITS, FITS, FITS]),
        ({INIT_FILE: "# new\n# lines\n" + INIT, UTIL_FILE: "x = 1\n"}, [MOVED, MOVED, FITS]),
        (  # the second patch of the file still fits
            {INIT_FILE: INIT.replace("line_19 =", "changed ="), UTIL_FILE: "x = 1\n"},
            [BREAKS, MOVED, FITS],
        ),
        ({INIT_FILE: INIT}, [FITS, FITS, BREAKS]),
    ],
)
def test_patches_that_move_or_fail_are_reported(
    tmp_path: Path, files: dict[str, str], expected: list[str]
) -> None:
    texts = {"1.patch": PATCH, "2.patch": LAST, "3.patch": UTIL}
    patches = [split(name, text) for name, text in texts.items()]
    read = {name: text.encode() for name, text in files.items()}
    rows = verdicts(compat.check_patches(patches, read, read.__getitem__, tmp_path))
    assert [verdict for verdict, _ in rows] == expected
    for (verdict, text), patch in zip(rows, patches, strict=True):
        assert text.startswith(patch.name)
        if verdict is BREAKS:
            assert text.endswith(patch.files[0])
        if verdict is MOVED:
            assert f"by {2 if expected[0] is MOVED else 1} lines" in text


def test_missing_headers_are_reported(tmp_path: Path) -> None:
    (tmp_path / "third_party/tensorflow").mkdir(parents=True)
    shutil.copy(ROOT / "third_party/tensorflow/BUILD.staged", tmp_path / "third_party/tensorflow")
    (tmp_path / "tensorflow_patches/glue/xla").mkdir(parents=True)
    (tmp_path / "tensorflow_patches/glue/xla/a.cc").write_text(
        '#include <string>\n#include "xla/a.h"\n#include "mlir/b.h"\n'
        '#include "tensorflow_patches/core/c.h"\n'
    )
    names = [
        "tensorflow/include/xla/a.h",
        "tensorflow/include/external/llvm-project/mlir/include/mlir/b.h",
    ]
    assert verdicts(compat.check_headers(tmp_path, names)) == [
        (FITS, "all 2 that the glue includes")
    ]
    assert verdicts(compat.check_headers(tmp_path, names[:1])) == [
        (BREAKS, "no mlir/b.h, which tensorflow_patches/glue/xla/a.cc includes")
    ]


def test_the_checkouts_includes_are_found() -> None:
    rows = list(compat.check_headers(ROOT, []))
    assert len(rows) > 30 and {row.verdict for row in rows} == {BREAKS}


def test_names_used_in_a_file_are_found() -> None:
    source = """
from tensorflow.python.framework import ops
from tensorflow.python.ops import gen_data as data, variables
from json import dumps

def inside(ops, x):
    ops.not_of_the_module
    hooking.used("keras.src.a:Name|Other")
    return data.call(x), x.of_x

def other():
    from tensorflow.python.eager import context
    context.used_here, ops.used, ops._tf_mpi_ours
    ops.written = 1
    return lambda context: context.not_of_the_module
"""
    assert sorted(probe.used_names(source)) == [
        "keras.src.a:Name|Other",
        "tensorflow.python.eager.context:used_here",
        "tensorflow.python.eager:context",
        "tensorflow.python.framework.ops:used",
        "tensorflow.python.framework:ops",
        "tensorflow.python.ops.gen_data:call",
        "tensorflow.python.ops:gen_data",
        "tensorflow.python.ops:variables",
    ]


@pytest.mark.parametrize(
    ("target", "lost"),
    [
        ("json:JSONDecoder.decode", False),
        ("json:Decoder|JSONDecoder.read|decode", False),
        ("xml:dom", False),  # a module that nothing has imported
        ("json:JSONDecoder.gone", True),
        ("json:Gone|Lost", True),
        ("json.gone:JSONDecoder", True),
        ("gone:JSONDecoder", True),
    ],
)
def test_names_that_are_lost_are_reported(target: str, lost: bool) -> None:
    assert probe.is_missing(target) is lost


def test_the_probe_reports_all_names_without_tensorflow(tmp_path: Path) -> None:
    """With this checkout's package: Python's own names are found, all others are reported."""
    for name in ("tensorflow", "keras", "tf_keras"):
        (tmp_path / f"{name}.py").touch()
    package = ROOT / "tensorflow_patches/python"
    run = subprocess.run(
        [sys.executable, "-P", probe.__file__, package],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "TF_MPI_ENABLE": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    hooks, names = (json.loads(run.stdout)[what] for what in ("hooks", "names"))
    assert hooks["count"] > 200 and names["count"] > 100
    assert "sys:excepthook" not in hooks["missing"]
    assert "tensorflow.python.data.ops.iterator_ops:OwnedIterator.__next__" in hooks["missing"]
    assert "tensorflow.python.eager:context" in names["missing"]


class Stand:
    """An environment whose programs print given output."""

    python = "python"
    official = Path("tensorflow_cpu-9.9.1-cp311.whl")
    root = ROOT

    def __init__(self, venv: Path, code: int, output: str) -> None:
        self.venv, self.result, self.piped = venv, process.Result(code, output), ""

    def make(self) -> None: ...

    def pip(self, *arguments: str) -> None:
        self.piped += " ".join(arguments) + "\n"

    def run(self, arguments: list[str]) -> process.Result:
        return self.result


def test_lost_names_are_reported(tmp_path: Path) -> None:
    found = {
        "hooks": {"count": 2, "missing": ["keras.src.a:Gone"]},
        "names": {"count": 3, "missing": []},
    }
    there: Any = Stand(tmp_path, 0, f"a warning\n{json.dumps(found)}\n")
    rows = verdicts(compat.check_names(there, tmp_path))
    assert rows == [(BREAKS, "hooks: no keras.src.a:Gone"), (FITS, "names: all 3")]
    fails: Any = Stand(tmp_path, 1, "ImportError: no keras\n")
    [row] = compat.check_names(fails, tmp_path)
    assert row.verdict is BREAKS and row.text.startswith("ImportError: no keras: python ")


def test_failed_tests_are_reported(tmp_path: Path) -> None:
    passes: Any = Stand(tmp_path, 0, "....\n4 passed in 3.00s\n")
    wheel = tmp_path / "ours.whl"
    rows = verdicts(compat.check_tests(passes, wheel))
    assert rows == [(FITS, "tests/tf/internals: 4 passed in 3.00s")]
    assert (
        passes.piped.startswith("uninstall --yes tensorflow_cpu\n") and "ours.whl" in passes.piped
    )
    failed = "FAILED tests/tf/internals/test_a.py::test_b[x] - assert 1 == 2\n1 failed in 3.00s\n"
    fails: Any = Stand(tmp_path, 1, failed)
    assert verdicts(compat.check_tests(fails, wheel)) == [
        (BREAKS, "test_a.py::test_b[x]: assert 1 == 2"),
        (BREAKS, "tests/tf/internals: 1 failed in 3.00s"),
    ]
    nothing: Any = Stand(tmp_path, 5, "no tests ran\n")
    assert verdicts(compat.check_tests(nothing, wheel)) == [
        (BREAKS, "tests/tf/internals: no tests ran")
    ]


def test_compile_and_link_errors_are_reported(
    checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("stage_tensorflow", "stage_mpi", "find_mpi", "mpich_wheel"):
        monkeypatch.setattr(compat, name, lambda *arguments: None)
    built: dict[str, Path] = {"a.so": tmp_path / "a.so"}
    monkeypatch.setattr(compat, "build_libraries", lambda layout, keep_going: built)
    check = compat.check_cpp(checkout.layout, checkout.official, "")
    assert verdicts(check) == [(FITS, "1 libraries compile and link")]
    monkeypatch.setattr(compat, "build_libraries", bazel.build_libraries)
    errors = [
        "glue/a.cc:3:1: error: no member 'x'",
        "glue/b.cc:4:10: fatal error: tensorflow/c.h: No such file or directory",
        "c.cc:(.text+0x1): undefined reference to `tensorflow::f()'",
    ]
    text = "\n".join(["INFO: x", *errors, errors[0], "1 error generated."])
    (tmp_path / "bazel").write_text(f"#!/bin/sh\ncat <<'E'\n{text}\nE\nexit 1\n")
    (tmp_path / "bazel").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    rows = verdicts(compat.check_cpp(checkout.layout, checkout.official, ""))
    assert rows == [(BREAKS, error.partition("+0x1): ")[2] or error) for error in errors]


def library(path: Path, source: str) -> Path:
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True, timeout=60)
    return path


def test_missing_symbols_are_reported(tmp_path: Path) -> None:
    names = [f"{prefix}Pv" for prefix in INTERPOSED]
    stock = "".join(f"int {name}(void) {{ return 1; }}\n" for name in names)
    theirs = library(tmp_path / "theirs.so", stock + "int taken(void) { return 2; }\n")
    calls = "int taken(void); int puts(const char*); int tfmpi_x(void) { puts(0); return taken(); }"
    ours = library(tmp_path / "ours.so", stock + calls)
    assert verdicts(compat.check_symbols(ours, [theirs])) == [
        (FITS, f"all 1 that ours imports, all {len(names)} that it interposes")
    ]
    fewer = library(tmp_path / "fewer.so", stock.replace(names[0], "other"))
    assert verdicts(compat.check_symbols(ours, [fewer])) == [
        (BREAKS, "taken is not defined"),
        (BREAKS, f"TensorFlow has no {INTERPOSED[0]}…, which ours interposes"),
    ]


def official(checkout: Checkout, version: str) -> Path:
    wheel = checkout.layout.root / f"tensorflow_cpu-{version}-cp311-cp311-manylinux_2_27_x86_64.whl"
    write_official(wheel)
    return wheel


def test_a_version_without_a_lock_uses_the_given_wheel(checkout: Checkout) -> None:
    wheel, target = official(checkout, "9.10.0"), Target(3, 11)
    layout, found = compat.trial(checkout.layout, target, str(wheel))
    lock = read_lock(layout.lock)
    assert (lock.version, lock.hashes) == ("9.10.0", {sha256_of(wheel)})
    assert layout.other_version == "9.10.0" and found.parent == layout.official
    assert compat.trial(checkout.layout, target, "9.10.0") == (layout, found)
    assert compat.trial(checkout.layout, target, VERSION) == (checkout.layout, checkout.official)
    assert not (layout.locks / "9.10.0").exists()
    with pytest.raises(BuildError, match="is not the file of a tensorflow_cpu wheel for cp312"):
        compat.trial(checkout.layout, Target(3, 12), str(wheel))


def test_a_version_that_pip_does_not_have_is_an_error(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = "ERROR: No matching distribution found for tensorflow-cpu==9.10.0\n"
    monkeypatch.setattr(process, "run", lambda *args, **options: process.Result(1, output))
    with pytest.raises(BuildError, match="pip could not fetch tensorflow-cpu==9.10.0: No matching"):
        compat.trial(checkout.layout, Target(3, 11), "9.10.0")


@pytest.mark.parametrize("breaks", [False, True])
def test_the_command_prints_the_table_and_sets_the_exit_status(
    checkout: Checkout,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    breaks: bool,
) -> None:
    """Patches and headers of the stand-in; no environment is created."""
    root = checkout.layout.root
    shutil.copy(ROOT / "third_party/tensorflow/BUILD.staged", checkout.layout.locks)
    if breaks:
        text = checkout.patch.read_text().replace(" line_17", " changed")
        checkout.patch.write_text(text)
    assert len(read_series(checkout.layout.patches)) == 1

    def names(environment: object, package: Path) -> Iterator[Row]:
        yield Row("names", FITS, "all 3")

    monkeypatch.setattr(compat, "check_names", names)
    here = types.SimpleNamespace(of_checkout=lambda cache: Layout(root, checkout.layout.cache))
    monkeypatch.setattr("wheelbuilder.cli.Layout", here)
    monkeypatch.setattr("wheelbuilder.cli.describe", lambda python: Target(3, 11))
    assert main(["compat", VERSION, "--no-build"]) == int(breaks)
    said = capsys.readouterr()
    lines = [line.partition("s] ")[2] for line in said.out.splitlines() if " s] " in line]
    assert lines[1].split() == [BREAKS if breaks else FITS, "patches", *lines[1].split()[2:]]
    assert f"{NOT_RUN:<8} C++ " in said.out
    if breaks:
        assert "wheel.py: 1 of 4 checks fail with TensorFlow 9.9.0: see above\n" == said.err
    else:
        assert said.out.endswith("TensorFlow 9.9.0: nothing breaks (4 checks)\n")
