"""Runs tests of Horovod's unmodified on this rank: run_tests.py FILE [pytest's options].

Prints the number of passed tests, and the failed or skipped ones with the reason.
"""

from __future__ import annotations

import os
import sys
import threading
import types
from typing import Any

import pytest
from common import result

found: dict[str, Any] = {"passed": [], "failed": {}, "skipped": {}}


class Notes:
    def pytest_runtest_logreport(self, report: Any) -> None:
        name = report.nodeid.rpartition("::")[2]
        if report.skipped:
            why = report.longrepr
            found["skipped"][name] = str(why[2] if isinstance(why, tuple) else why)
        elif report.failed:
            found["failed"][name] = str(report.longrepr)[-1500:]
        elif report.when == "call":
            found["passed"].append(name)


def in_thread(target: Any, args: Any = (), daemon: bool = True) -> threading.Thread:
    """Replaces a function of Horovod's launcher, whose module its tests import."""
    thread = threading.Thread(target=target, args=args, daemon=daemon)
    thread.start()
    return thread


def rank_and_size() -> tuple[int, int]:
    """Likewise."""
    return int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])


del sys.modules["common"]  # Horovod has another module of that name
sys.path = [path for path in sys.path if not path.endswith("tests/tf")]
OF_THE_LAUNCHER: dict[str, dict[str, Any]] = {
    "horovod.runner.util": {},
    "horovod.runner.util.threads": {"in_thread": in_thread},
    "horovod.runner.common": {},
    "horovod.runner.common.util": {},
    "horovod.runner.common.util.env": {"get_env_rank_and_size": rank_and_size},
}
for name, functions in OF_THE_LAUNCHER.items():
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(functions)
options = ["-p", "no:cacheprovider", "-p", "no:xdist", "-q", "--tb=short"]
status = pytest.main([*options, *sys.argv[1:]], plugins=[Notes()])
if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
    found["failed"]["pytest"] = f"{status!r}"
result(found)
