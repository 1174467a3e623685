"""Many variables whose updates start in another order on every rank: no hang, one value everywhere.

TFMPI_TEST_ORDER_STEPS is the number of steps with 400 variables (default: 1,000 over the four
numbers of inter-op threads; 20 variables take 1,000 steps with each).
"""

from __future__ import annotations

import os
from typing import Any

import pytest

STEPS = int(os.environ.get("TFMPI_TEST_ORDER_STEPS", "1000")) // 4
STAGES = ["20", "1000", "400", str(STEPS)]
TIMEOUT = 300

# Each run has ranks, inter-op threads (for a session: of several sessions, one after the other).
RUNS = [
    ("session", 3, "1,2,3,4"),
    ("session", 4, "4,3,2,1"),
    ("function", 3, "1"),
    ("function", 4, "2"),
    ("function", 3, "3"),
    ("function", 4, "4"),
]


def ranks_of(launch, scripts, mode: str, ranks: int, threads: str) -> list[dict[str, Any]]:
    args = [mode, threads, *STAGES]
    run = launch(scripts / "order.py", np=ranks, args=args, timeout=TIMEOUT).check()
    return run.results


@pytest.mark.parametrize("mode, ranks, threads", RUNS)
def test_any_order(launch, scripts, mode, ranks, threads):
    results = ranks_of(launch, scripts, mode, ranks, threads)
    assert len(results[0]) == 2 * len(threads.split(","))
    for stage, first in results[0].items():
        assert first["distance"] < 1e-5, stage
        for other in results[1:]:
            assert other[stage]["digest"] == first["digest"], stage
