"""What the tests that run TensorFlow share: the scripts' folder and a stock TensorFlow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from wheelbuilder.files import only_one

SCRIPTS = Path(__file__).parent / "scripts"
STOCK_VERSION = "2.21.0"
STOCK_VENV = Path(__file__).parents[2] / ".cache" / "stock"


@pytest.fixture(scope="session")
def scripts() -> Path:
    """The folder of the scripts that ranks run."""
    return SCRIPTS


def _is_stock(python: str) -> str | None:
    """None if `python` has the official wheel, else why not."""
    look = "from importlib.metadata import version as v; print(v('tensorflow-cpu'))"
    run = subprocess.run([python, "-c", look], capture_output=True, text=True, timeout=120)
    if run.stdout.strip() == STOCK_VERSION:
        return None
    found = run.stdout.strip() or run.stderr[-200:]
    return f"{python} has no tensorflow-cpu {STOCK_VERSION}: {found}"


def _build_stock() -> str | None:
    """Makes STOCK_VENV; None if that worked, else why not."""
    python = STOCK_VENV / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", STOCK_VENV], check=True, timeout=120)
    install = [str(python), "-m", "pip", "install", "--quiet"]
    wanted = [
        [f"tensorflow-cpu=={STOCK_VERSION}"],
        ["--no-deps", "-r", str(Path(__file__).parents[1] / "requirements-no-deps.txt")],
    ]
    for packages in wanted:
        run = subprocess.run([*install, *packages], capture_output=True, text=True, timeout=600)
        if run.returncode:
            return f"pip: {run.stderr.strip()[-300:]}"
    return None


@pytest.fixture(scope="session")
def stock_python() -> str:
    """A Python with the official wheel: $TFMPI_STOCK_PYTHON, else a venv made in .cache."""
    given = os.environ.get("TFMPI_STOCK_PYTHON")
    if given:
        why = _is_stock(given)
        if why is not None:
            pytest.fail(f"TFMPI_STOCK_PYTHON: {why}")
        return given
    python = str(STOCK_VENV / "bin" / "python")
    with only_one(STOCK_VENV):  # pytest may have several workers
        why = None
        if not Path(python).exists() or _is_stock(python) is not None:
            try:
                why = _build_stock()
            except (subprocess.SubprocessError, OSError) as error:
                why = str(error)
        if why is not None:
            pytest.skip(f"no stock TensorFlow to compare with ({why}); set TFMPI_STOCK_PYTHON")
    return python
