"""The two tiers of the tests. CONTRIBUTING.md says what is in which, and why.

A test without a mark is in the quick tier (`./install.sh --test`, about 15 minutes on 2 cores)
and in the full one (`--test-all`). `pytest.mark.full` puts a test, or a file, into the full tier
only; `full(...)` does so for single parameters of a test:

    @pytest.mark.parametrize("ranks", [2, full(3)])
"""

from __future__ import annotations

from typing import Any

import pytest


def full(*values: Any) -> Any:
    """Marks these parameter values as being for the full tier only."""
    return pytest.param(*values, marks=pytest.mark.full)
