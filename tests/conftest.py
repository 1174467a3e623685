"""What every test shares: the launcher, and a check that the patched wheel is what gets tested."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable

import pytest

from launch import LaunchResult
from launch import launch as start


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--any-wheel",
        action="store_true",
        help="run even where the patched wheel is not installed (tests that need it will fail)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "alone: looks at times, so nothing else should run beside it (./install.sh)"
    )


def installed_wheel() -> str | None:
    """The version of the tensorflow-cpu distribution in this environment."""
    try:
        return importlib.metadata.version("tensorflow-cpu")
    except importlib.metadata.PackageNotFoundError:
        return None


def pytest_sessionstart(session: pytest.Session) -> None:
    version = installed_wheel()
    if session.config.getoption("--any-wheel") or (version and "+mpi." in version):
        return
    found = f"tensorflow-cpu {version}" if version else "no tensorflow-cpu"
    pytest.exit(
        f"the patched wheel is not installed here: found {found}. Run ./install.sh, then pytest "
        "from its environment; or pass --any-wheel.",
        returncode=3,
    )


@pytest.fixture(name="launch", scope="session")
def launch_fixture() -> Callable[..., LaunchResult]:
    """tests/launch.py's launch(): the only way for a test to start ranks."""
    return start
