"""Fixtures for all tests: the launcher, and a check that the patched wheel is being tested."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import launch
import pool
from installed import distribution
from launch import LaunchResult

# Off until all test modules are imported: some import TensorFlow (see imports/sitecustomize.py).
gc.disable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--any-wheel",
        action="store_true",
        help="run even if the patched wheel is not installed (tests that need it will fail)",
    )
    parser.addoption(
        "--pool",
        action="store_true",
        help="run scripts that allow it in persistent ranks (tests/pool.py)",
    )


def pytest_configure(config: pytest.Config) -> None:
    for marker in (
        "full: only in ./install.sh --test-all; all other tests are also in the quick tier, --test",
        "alone: measures times, so nothing else should run at the same time; also in the full tier",
    ):
        config.addinivalue_line("markers", marker)
    if config.getoption("--pool"):
        launch.pool = pool.run


@pytest.fixture(scope="session", autouse=True)
def pools_end() -> Iterator[None]:
    """Ends the pools; the last test gets an error if they do not end normally."""
    yield
    pool.end()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With --pool, one worker gets all files with pooled scripts, so that their order is fixed."""
    if not config.getoption("--pool"):
        return None
    from xdist.scheduler import LoadFileScheduling

    @functools.cache
    def scope(file: str) -> str:
        return "pool" if "pooled=True" in (config.rootpath / file).read_text() else file

    class OnePool(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope(str(super()._split_scope(nodeid)))

    return OnePool(config, log)


# These files run first (--no-loadscope-reorder), so that no worker is left with one at the end.
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
    def place(item: pytest.Item) -> int:
        if item.path.parent.name == "mpi":  # last: Bazel builds its program after the C++ tests
            return len(LONGEST) + 1
        return LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST)

    items.sort(key=place)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


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
    """launch() of tests/launch.py, the only way for a test to start ranks."""
    return launch.launch
