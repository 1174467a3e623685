"""Fixtures for the wheel builder's tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from standin import Checkout, make_checkout


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return make_checkout(tmp_path)
