"""Checks by name, which all ranks run, and their errors; for the scripts in this folder."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
from common import result

_checks: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    """Decorates a check, which raises if something is wrong."""
    _checks[function.__name__] = function
    return function


def equal(got: Any, expected: Any, tolerance: float = 0.0) -> None:
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape, f"shape {got.shape}, not {expected.shape}"
    assert np.allclose(got, expected, rtol=tolerance, atol=tolerance), f"{got} is not {expected}"


def raises(kind: Any, function: Callable[[], Any], words: str = "") -> None:
    try:
        function()
    except kind as error:
        assert words in str(error), f"{words!r} is not in {error}"
        return
    raise AssertionError(f"did not raise {kind}")


def run_all(only: list[str]) -> None:
    """Runs the checks in order, or those in `only`; prints {name: error or ""}."""
    found = {}
    for name, function in _checks.items():
        if only and name not in only:
            continue
        try:
            function()
            found[name] = ""
        except Exception:
            found[name] = traceback.format_exc()[-1500:]
    result(found)
