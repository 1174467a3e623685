"""Many variables whose updates start in different orders on the ranks: no hang, equal values.

20 variables take 1,000 steps in every run. 400 variables take TFMPI_TEST_ORDER_STEPS steps
(default: 1,000), divided over the runs in Sessions, and as many over the runs in functions.
"""

from __future__ import annotations

import os

import pytest

pytestmark = pytest.mark.full

STEPS = int(os.environ.get("TFMPI_TEST_ORDER_STEPS", "1000"))
TIMEOUT = 300

# Each run: ranks, inter-op threads (for sessions: of several consecutive sessions).
RUNS = [
    ("session", 3, "2,4"),
    ("session", 4, "1,3"),
    ("function", 3, "1"),
    ("function", 4, "4"),
]


@pytest.mark.parametrize("mode, ranks, threads", RUNS)
def test_updates_in_any_order_give_equal_values(launch, scripts, mode, ranks, threads):
    numbers = sum(len(other.split(",")) for kind, _, other in RUNS if kind == mode)
    args = [mode, threads, "20", "1000", "400", str(max(2, STEPS // numbers))]
    results = launch(scripts / "order.py", np=ranks, args=args, timeout=TIMEOUT).check().results
    assert len(results[0]) == 2 * len(threads.split(","))
    for stage, first in results[0].items():
        assert first["distance"] < 1e-5, stage
        for other in results[1:]:
            assert other[stage]["digest"] == first["digest"], stage
