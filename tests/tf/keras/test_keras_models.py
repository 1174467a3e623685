"""Typical models and loops give the same results on 2 and 3 ranks as in one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compare import decode

from launch import launch as start
from reference import reference
from tiers import full

TOLERANCE = {"weights": 1e-5, "half weights": 1e-3}


QUICK = ("loop eager", "functional", "gan", "mixed", "loop function")


@pytest.mark.parametrize("ranks, cases", [(2, QUICK), full(2, ()), full(3, ())])
def test_models_and_loops_equal_one_process(scripts, ranks, cases):
    """For these cases, or all."""
    (alone,) = reference(scripts / "keras_models.py", args=cases)
    results = (
        start(scripts / "keras_models.py", np=ranks, args=cases, timeout=300, pooled=True)
        .check()
        .results
    )
    far: dict[str, Any] = {}
    for case, theirs in alone.items():
        for ours in (result[case] for result in results):
            assert ours == results[0][case], f"{case}: ranks differ"
        for key, expected in theirs.items():
            ours = results[0][case][key]
            if key in TOLERANCE:
                pairs = zip(ours, expected, strict=True)
                apart = max(float(np.abs(decode(a) - decode(b)).max()) for a, b in pairs)
                if not apart <= TOLERANCE[key]:
                    far[f"{case} {key}"] = apart
            elif key == "losses":
                for name, values in expected.items():
                    if not np.allclose(ours[name], values, rtol=1e-5, atol=1e-6):
                        far[f"{case} {name}"] = (ours[name], values)
            else:
                assert ours == expected, (case, key)
    assert not far, f"further from one process than allowed: {far}"
