"""What every test shares: the launcher, and a check that the patched wheel is what gets tested."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from installed import distribution
from launch import LaunchResult
from launch import launch as start


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--any-wheel",
        action="store_true",
        help="run even where the patched wheel is not installed (tests that need it will fail)",
    )


def pytest_configure(config: pytest.Config) -> None:
    for marker in (
        "full: in ./install.sh --test-all only; everything else is in the quick tier, --test",
        "alone: looks at times, so nothing else should run beside it; in the full tier, too",
    ):
        config.addinivalue_line("markers", marker)


# First, so that no worker is left alone with one of them at the end (--no-loadscope-reorder).
LONGEST = (
    "test_keras_fit.py",
    "test_files.py",
    "test_keras_decisions.py",
    "test_errors.py",
    "test_keras_models.py",
    "test_order.py",
    "test_optimizer_ops.py",
    "test_sparse.py",
    "test_shard.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    last = len(LONGEST)
    items.sort(key=lambda i: LONGEST.index(i.path.name) if i.path.name in LONGEST else last)


def pytest_sessionstart(session: pytest.Session) -> None:
    here = distribution()
    if session.config.getoption("--any-wheel") or (here and "+mpi." in here.version):
        return
    found = f"{here.name} {here.version}" if here else "no TensorFlow"
    pytest.exit(
        f"the patched wheel is not installed here: found {found}. Run ./install.sh, then pytest "
        "from its environment; or pass --any-wheel.",
        returncode=3,
    )


@pytest.fixture(name="launch", scope="session")
def launch_fixture() -> Callable[..., LaunchResult]:
    """tests/launch.py's launch(): the only way for a test to start ranks."""
    return start
