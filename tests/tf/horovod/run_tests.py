"""Runs tests of Horovod's, as they are, on this rank: run_tests.py FILE [pytest's options].

Prints how many passed, and what failed or was skipped, with the reason.
"""

from __future__ import annotations

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
    """Of Horovod's launcher, which its tests import for something else."""
    thread = threading.Thread(target=target, args=args, daemon=daemon)
    thread.start()
    return thread


del sys.modules["common"]  # theirs is another
sys.path = [path for path in sys.path if not path.endswith("tests/tf")]
for name in ("horovod.runner.util", "horovod.runner.util.threads"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["horovod.runner.util.threads"].in_thread = in_thread  # type: ignore[attr-defined]
options = ["-p", "no:cacheprovider", "-p", "no:xdist", "-q", "--tb=short"]
status = pytest.main([*options, *sys.argv[1:]], plugins=[Notes()])
if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
    found["failed"]["pytest"] = f"{status!r}"
result(found)
