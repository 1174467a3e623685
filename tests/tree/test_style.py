"""Style rules, checked by tools that tests/requirements.txt pins."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ["tensorflow_patches/python", "build", "tests", "examples", "benchmarks"]
CPP = [
    str(path.relative_to(ROOT))
    for folder in ("tensorflow_patches", "tests")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".cc", ".h")
]


@pytest.mark.parametrize(
    ("folder", "command"),
    [
        (".", ["ruff", "check", *PYTHON]),
        (".", ["ruff", "format", "--check", *PYTHON]),
        (".", ["mypy"]),
        ("build", ["mypy"]),
        (".", ["clang-format", "--dry-run", "--Werror", *CPP]),
    ],
    ids=["ruff check", "ruff format", "mypy", "mypy build", "clang-format"],
)
def test_style(folder: str, command: list[str]) -> None:
    tool = Path(sys.executable).parent / command[0]
    result = subprocess.run(
        [tool, *command[1:]], cwd=ROOT / folder, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]


def _check_threads(files: list[Path]) -> subprocess.CompletedProcess[str]:
    """Clang's thread-safety analysis: only functions that require a role touch what it guards."""
    tool = Path(sys.executable).parent / "clang-tidy"
    checks = "-*,clang-diagnostic-thread-safety*,misc-static-assert"
    options = ["--quiet", f"--checks={checks}", "--warnings-as-errors=*"]
    return subprocess.run(
        [tool, *options, *files, "--", "-std=c++17", "-Wthread-safety", f"-I{ROOT}"],
        capture_output=True,
        text=True,
        check=False,
    )


def test_thread_roles_are_respected() -> None:
    result = _check_threads(sorted((ROOT / "tensorflow_patches/core/engine").glob("*.cc")))
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]


def test_the_analysis_finds_a_thread_without_the_role(tmp_path: Path) -> None:
    """It reports exactly the lines that break the contract."""
    file = tmp_path / "role.cc"
    file.write_text(
        """
#include <memory>
#include "tensorflow_patches/core/base/thread_role.h"
struct Engine {
  tfmpi::ThreadRole role;
  int state TFMPI_GUARDED_BY(role) = 0;
  std::unique_ptr<int> transport TFMPI_PT_GUARDED_BY(role);
  void Work() TFMPI_REQUIRES(role) { ++state, ++*transport; }
  void Run() { role.Take(); Work(); role.GiveUp(); }
  void Callback() { role.AssertMine(); Work(); }
  void Joined() { role.AssertGivenUp(); Work(); }
  void Touches() { ++state; }              // broken
  void Calls() { Work(); }                 // broken
  void Sends() { ++*transport; }           // broken
  void Late() { Run(); ++state; }          // broken
  void Keeps() { role.Take(); }            // broken
};
"""
    )
    result = _check_threads([file])
    lines = file.read_text().splitlines()
    broken = [number for number, line in enumerate(lines, 1) if "// broken" in line]
    found = re.findall(r"role\.cc:(\d+):\d+: error: .*thread-safety", result.stdout)
    assert sorted({int(number) for number in found}) == broken, result.stdout[-4000:]


# The files that may read frames or code objects (FRAMES), or decide by the name or module of a
# class (CLASSES), and for which purpose.
FRAMES = {
    "compat_v1/sessions.py": "identifies a graph by the line that made its session: decision 004",
    "keras/adapters.py": "functions of two ranks are compared by their code",
    "lifecycle/ends.py": "whether an exception that nobody caught ends the main module",
    "presence/reasons.py": "a message names the line of the script in which a rank is",
    "random/entropy.py": "identifies a draw by its place in the script: decision 037",
    "random/ops.py": "asks entropy.py for that place",
}
CLASSES = {
    "compat_v1/gradients.py": "TensorFlow's own optimizers",
    "compat_v1/subclasses.py": "... and the script's",
    "data/transformations.py": "TensorFlow's datasets",
    "keras/adapters.py": "Keras's classes",
    "random/host.py": "draws of Python's library, by the module that asks: decision 037",
    "random/ops.py": "... and of TensorFlow's",
}
_READS_FRAMES = re.compile(
    r"_getframe|\.f_(code|back|lineno)\b|\.co_\w+|extract_stack|currentframe"
)
_BY_CLASS = re.compile(
    r"__(module|name|qualname)__\S* (==|!=|in|not in) |__module__\.(startswith|partition)"
    r"|(==|!=| in) type\(\w+\)\.__(name|module)__|classes\.get\(\w+\.__module__"
)


@pytest.mark.parametrize(
    "pattern, known",
    [(_READS_FRAMES, FRAMES), (_BY_CLASS, CLASSES)],
    ids=["frames and code", "classes"],
)
def test_code_that_inspects_frames_or_classes_is_listed(
    pattern: re.Pattern[str], known: dict[str, str]
) -> None:
    """No decision depends on names or shapes of a script's functions."""
    room = ROOT / "tensorflow_patches/python/_src"
    found = {
        str(path.relative_to(room))
        for path in room.rglob("*.py")
        if any(pattern.search(line) for line in path.read_text().splitlines())
    }
    assert found == set(known)


def test_environment_is_read_in_one_place() -> None:
    """Only config reads the environment; it passes values on.

    Exceptions are at_start.py and finder.py, which run before config can be imported.
    """
    readers = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tensorflow_patches").rglob("*")
        if path.suffix in (".py", ".cc", ".h")
        and path.name not in ("at_start.py", "finder.py")
        and path.parent.name != "config"
        if any(word in path.read_text() for word in ("os.environ", "getenv("))
    ]
    assert readers == []
