"""The two tiers of the tests.  CONTRIBUTING.md says what is where, and why.

What bears no mark is in the quick tier (`./install.sh --test`, aimed at 10 minutes on 2 cores) and
in the full one (`--test-all`).  `pytest.mark.full` marks a test, or a file, that is in the full
tier only; `full(...)` does so for one of a test's parameters:

    @pytest.mark.parametrize("ranks", [2, full(3)])
"""

from __future__ import annotations

from typing import Any

import pytest


def full(*values: Any) -> Any:
    """These values of a test's parameters are tried in the full tier only."""
    return pytest.param(*values, marks=pytest.mark.full)
