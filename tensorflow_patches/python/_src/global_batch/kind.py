"""The kinds of tensors, by how they depend on the samples of a batch."""

from __future__ import annotations

import enum


class Kind(enum.Enum):
    CONST = "does not depend on the batch"
    SIZE = "depends on the number of samples only"
    INVERSE = "a constant by the number of samples"
    ROWS = "has samples along its first dimension, each for itself"
    ONES = "rows of a constant"
    PARTS = "rows, each by the number of samples"
    SHIFTED = "rows and a mean, added"
    COLUMNS = "has samples along another dimension"
    PLACES = "the numbers of the samples, from 0"
    SELECTED = "some of the rows, by their values"
    SUM = "a sum over samples"
    MEAN = "a mean over samples"
    LINEAR = "a sum over samples, and a constant or a mean"
    RATIO = "a sum or a mean over samples, by another"
    MIXED = "of several samples at once"
    UNKNOWN = "unknown"


# A mean over a part, weighted by its samples, averages to that over the whole batch.
ADDITIVE = {Kind.CONST, Kind.SIZE, Kind.MEAN}
ROWS = {Kind.ROWS, Kind.ONES}  # each sample for itself
