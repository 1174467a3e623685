"""Fixtures for tests that run TensorFlow: the folder of their scripts and a stock TensorFlow."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import installed
from wheelbuilder.errors import BuildError
from wheelbuilder.files import only_one
from wheelbuilder.inputs.official import official_wheel
from wheelbuilder.layout import CPU, Layout
from wheelbuilder.lock import for_version, read_lock
from wheelbuilder.target import describe

SCRIPTS = Path(__file__).parent / "scripts"
STOCK_VERSION = installed.tensorflow_version()
FLAVOUR = installed.flavour()  # ours is built from the same official wheel
_CACHE = Path(__file__).parents[2] / ".cache"
STOCK_VENV = _CACHE / ("stock" if FLAVOUR == CPU else f"stock-{FLAVOUR.name}")

# As setuptools does for its own folder: TensorFlow before 2.19 imports distutils, which Python no
# longer has from 3.12 on.
_DISTUTILS = (
    "import importlib.util as u; "
    "u.find_spec('_distutils_hack') and __import__('_distutils_hack').add_shim()"
)


@pytest.fixture(scope="module")
def scripts(request: pytest.FixtureRequest) -> Path:
    """The folder of the scripts that ranks run, which is that of the test."""
    return request.path.parent


def _is_stock(python: str) -> str | None:
    """None if `python` has this version and the official wheel, else the reason why not."""
    look = "import sys; from importlib.metadata import version as v; print(v('NAME'), sys.version)"
    look = look.replace("NAME", FLAVOUR.official_name)
    run = subprocess.run([python, "-c", look], capture_output=True, text=True, timeout=120)
    if run.stdout.strip() == f"{STOCK_VERSION} {sys.version}":
        return None
    found = run.stdout.strip() or run.stderr[-200:]
    return f"{python} has no {FLAVOUR.official_name} {STOCK_VERSION} for {sys.version}: {found}"


def _build_stock() -> None:
    """Creates STOCK_VENV: the official wheel on top of this environment's packages."""
    layout = for_version(Layout.of_checkout(flavour=FLAVOUR), STOCK_VERSION)
    wheel = official_wheel(layout, read_lock(layout.lock), describe(None))
    make = [sys.executable, "-m", "venv", "--clear", "--without-pip", str(STOCK_VENV)]
    subprocess.run(make, check=True, timeout=120)
    places = {"base": str(STOCK_VENV), "platbase": str(STOCK_VENV)}
    site = Path(sysconfig.get_path("platlib", "posix_prefix", places))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (site / "behind.pth").write_text(f"{sysconfig.get_path('platlib')}\n{_DISTUTILS}\n")


@pytest.fixture(scope="session")
def stock_python() -> str:
    """A Python with the official wheel: $TFMPI_STOCK_PYTHON, else an environment in .cache."""
    given = os.environ.get("TFMPI_STOCK_PYTHON")
    if given:
        why = _is_stock(given)
        if why is not None:
            pytest.fail(f"TFMPI_STOCK_PYTHON: {why}")
        return given
    python = STOCK_VENV / "bin" / "python"
    with only_one(STOCK_VENV.with_name("stock-lock")):  # pytest may have several workers
        why = _is_stock(str(python)) if python.exists() else "it was never made"
        if why is not None:
            try:
                _build_stock()
                why = _is_stock(str(python))
            except (BuildError, subprocess.SubprocessError, OSError) as error:
                why = str(error)
    if why is not None:
        pytest.fail(f"no stock TensorFlow to compare with ({why}): set TFMPI_STOCK_PYTHON")
    return str(python)
