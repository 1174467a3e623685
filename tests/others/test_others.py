"""Third-party packages: the quick half of tests/others/run.py, which creates environments."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from others import run

QUICK = (
    "scikeras",
    "probability",
    "sonnet",
    "optimization",
    "larq",
    "recommenders",
    "keras_rs",
    "official",
)


def test_the_page_lists_every_program_as_pinned():
    assert run.written({}, ranks=2) == run.PAGE.read_text()
    assert len(run.programs([])) >= 16


@pytest.mark.full
@pytest.mark.parametrize("name", QUICK)
def test_packages_on_ranks_equal_one_process(name: str) -> None:
    command = [sys.executable, str(Path(__file__).with_name("run.py")), name]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=850, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
