"""The rules of style, as their tools check them; pinned in tests/requirements.txt."""

from __future__ import annotations

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


def test_progress_lock_is_held() -> None:
    """What the progress lock guards is touched by its holder alone, as Clang's checker sees it."""
    tool = Path(sys.executable).parent / "clang-tidy"
    engine = sorted((ROOT / "tensorflow_patches/core/engine").glob("*.cc"))
    checks = "-*,clang-diagnostic-thread-safety*,misc-static-assert"
    options = ["--quiet", f"--checks={checks}", "--warnings-as-errors=*"]
    result = subprocess.run(
        [tool, *options, *engine, "--", "-std=c++17", "-Wthread-safety", f"-I{ROOT}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]


def test_environment_is_read_in_one_file() -> None:
    """Only config.py may look at the environment; everything else is told.

    But for hash_order.py, which decides before there is time to import config.py.
    """
    readers = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tensorflow_patches").rglob("*")
        if path.suffix in (".py", ".cc", ".h") and path.name not in ("config.py", "hash_order.py")
        if any(word in path.read_text() for word in ("os.environ", "getenv("))
    ]
    assert readers == []
