"""Adasum: a sum that counts the common part of two ranks' tensors only once.

adasum(a, b) = (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b, applied to pairs, then to pairs of pairs
and so on. Dot products are computed in float64.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_SMALL = 1e-8  # a squared norm below this counts as zero


def combine(rows: Any, size: int) -> Any:
    """Combines the ranks' tensors, which are stacked along the first dimension of `rows`. Raises
    NotImplementedError if `size`, their number, is not a power of two."""
    if size & (size - 1):
        raise NotImplementedError("Running Adasum with non-power of 2 ranks is not supported yet.")
    tensors = [rows[rank] for rank in range(size)]
    while len(tensors) > 1:
        tensors = [_pair(a, b) for a, b in zip(tensors[::2], tensors[1::2], strict=True)]
    return tensors[0]


def _pair(a: Any, b: Any) -> Any:
    wide_a, wide_b = tf.cast(a, tf.float64), tf.cast(b, tf.float64)
    dot = tf.reduce_sum(wide_a * wide_b)
    return tf.cast(_coefficient(wide_a, dot) * wide_a + _coefficient(wide_b, dot) * wide_b, a.dtype)


def _coefficient(tensor: Any, dot: Any) -> Any:
    square = tf.reduce_sum(tf.square(tensor))
    nonzero = square >= _SMALL
    return tf.where(nonzero, 1.0 - dot / (2.0 * tf.where(nonzero, square, 1.0)), 1.0)
