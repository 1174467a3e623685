"""Compares the output of ranks and processes: bitwise, or within a tolerance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

_NARROW = {"bfloat16": ml_dtypes.bfloat16}


def decode(encoded: Sequence[Any]) -> np.ndarray:
    """Decodes an array encoded by common.py."""
    name, shape, digits = encoded
    dtype = np.dtype(_NARROW.get(name, name))
    return np.frombuffer(bytes.fromhex(digits), dtype).reshape(shape)


def distance(a: Sequence[Any], b: Sequence[Any]) -> float:
    """The largest difference of two encoded arrays, relative for values above 1."""
    left, right = decode(a), decode(b)
    assert left.dtype == right.dtype and left.shape == right.shape, (a[:2], b[:2])
    if left.dtype.name in ("float16", "bfloat16"):
        left, right = left.astype(np.float32), right.astype(np.float32)
    assert np.isfinite(left).all() and np.isfinite(right).all()
    if left.size == 0:
        return 0.0
    return float((np.abs(left - right) / np.maximum(1, np.abs(right))).max())


def distances(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, float]:
    """distance() for each of the named arrays."""
    assert ours.keys() == theirs.keys()
    return {name: distance(ours[name], theirs[name]) for name in ours}


def assert_close(ours: Mapping[str, Any], theirs: Mapping[str, Any], tolerance: float) -> None:
    """Checks that each named array of `ours` is within `tolerance` of the one in `theirs`."""
    far = {name: d for name, d in distances(ours, theirs).items() if not d <= tolerance}
    assert not far, f"differences above {tolerance}: {far}"


def assert_same(results: Sequence[Mapping[str, Any]], *keys: str) -> None:
    """Checks that every rank printed bitwise the same for each of `keys` (default: all)."""
    for key in keys or results[0]:
        for rank, other in enumerate(results[1:], start=1):
            assert other[key] == results[0][key], f"rank {rank} differs from rank 0 in {key}"


def assert_cases_close(found: Mapping[str, Any], expected: Mapping[str, Any], limit: float) -> None:
    """assert_close for each case; the error names all cases that differ."""
    far: dict[str, str] = {}
    for case, value in expected.items():
        try:
            assert_close(found[case], value, limit)
        except AssertionError as error:
            far[case] = str(error)[:300]
    assert not far, far
