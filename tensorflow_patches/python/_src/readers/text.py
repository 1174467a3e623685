"""Files of numbers with a delimiter between them, one row per line.

The file is divided into blocks. Each rank counts the lines of its blocks, the ranks exchange the
counts, and each reads the blocks that contain its rows. So the ranks' numbers of rows differ by at
most one, and together, whatever their number, they read the file about twice.
"""

from __future__ import annotations

import bisect
import io
import itertools
import os
from typing import Any, NamedTuple

import numpy as np
from tensorflow.mpi._src.readers import parts
from tensorflow.mpi._src.runtime import group

_MIN_BLOCK, _MAX_BLOCK = 256, 1 << 16
_BLOCKS_OF_A_RANK = 64


class Rows(NamedTuple):
    """A rank's rows. `first`: its first row's number in the file, from 0, not counting a header."""

    numbers: np.ndarray[Any, Any]  # [rows, columns]
    first: int
    total: int


class FormatError(ValueError):
    """The message names the file and the row, and the column if one is wrong, counted from 1."""


def read(path: str, delimiter: str = ",", header: bool = False) -> Rows:
    """This rank's rows; all ranks must call this.

    Raises FormatError for an invalid row; OSError.
    """
    with open(path, "rb", buffering=0) as file:
        begin = len(_line(file)) if header else 0
        size = os.fstat(file.fileno()).st_size - begin
        each = size // (group.group_size * _BLOCKS_OF_A_RANK)
        block = min(max(each, _MIN_BLOCK), _MAX_BLOCK)
        blocks = -(-size // block)
        lines = _count(file, begin, size, block, parts.part(blocks))
        counts = parts.gather_numbers(lines, f"lines of {os.path.basename(path)}").tolist()
        starts = [0, *itertools.accumulate(counts)]  # line ends before each block
        total = starts[-1] + _unended(file, begin + size, size)
        first, last = parts.part(total)
        text = _read_rows(file, begin, size, block, starts, first, last)
    return Rows(_parse(text, path, first, delimiter, header), first, total)


def _line(file: Any) -> bytes:
    """The first line, including its end."""
    found = b""
    while b"\n" not in found:
        more = file.read(_MIN_BLOCK)
        if not more:
            return found
        found += more
    return found[: found.index(b"\n") + 1]


def _count(file: Any, begin: int, size: int, block: int, mine: tuple[int, int]) -> list[int]:
    """The number of line ends in each of this rank's blocks."""
    file.seek(begin + mine[0] * block)
    return [_exactly(file, min(block, size - i * block)).count(b"\n") for i in range(*mine)]


def _exactly(file: Any, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = file.read(size - len(data))
        if not more:
            raise OSError(f"{file.name} became shorter while it was being read")
        data += more
    return data


def _unended(file: Any, end: int, size: int) -> int:
    """1 if the last line has no end."""
    if size <= 0:
        return 0
    file.seek(end - 1)
    return int(file.read(1) != b"\n")


def _read_rows(
    file: Any, begin: int, size: int, block: int, starts: list[int], first: int, last: int
) -> bytes:
    """The text of the rows from `first` up to, but not including, `last`."""
    if first == last:
        return b""

    def place(row: int) -> tuple[int, int]:
        """(the block in which the line before `row` ends, that line end's number in the block)."""
        if row == 0:
            return 0, 0
        found = bisect.bisect_left(starts, row) - 1
        return found, row - starts[found]

    (low, skip), (high, _) = place(first), place(last)
    after = size if last > starts[-1] else min(size, (high + 1) * block)
    file.seek(begin + low * block)
    text = _exactly(file, after - low * block)
    start = _after_lines(text, skip)
    end = _after_lines(text[start:], last - first)
    return text[start : start + end]


def _after_lines(text: bytes, number: int) -> int:
    place = 0
    for _ in range(number):
        end = text.find(b"\n", place)
        if end < 0:
            return len(text)
        place = end + 1
    return place


def _parse(
    text: bytes, path: str, first: int, delimiter: str, header: bool
) -> np.ndarray[Any, Any]:
    if not text:
        return np.zeros((0, 0))
    try:
        lines = text.count(b"\n") + (not text.endswith(b"\n"))
        found = np.loadtxt(io.BytesIO(text), delimiter=delimiter, ndmin=2, comments=None)
        if len(found) == lines:
            return found
    except ValueError:
        pass
    _explain(text.decode("utf-8", "replace"), path, first, delimiter, header)
    raise FormatError(f"{path}: rows from {first + 1} on are not numbers")


def _explain(text: str, path: str, first: int, delimiter: str, header: bool) -> None:
    """Raises FormatError for the first invalid row or cell; returns if it finds none."""
    columns = 0
    for number, line in enumerate(text.removesuffix("\n").split("\n")):
        where = f"{path}: row {first + number + 1}" + (" after the header" if header else "")
        cells = line.removesuffix("\r").split(delimiter)
        if line.strip() == "":
            raise FormatError(f"{where} is an empty line")
        for column, cell in enumerate(cells, 1):
            try:
                float(cell)
            except ValueError:
                raise FormatError(f"{where}, column {column}: {cell!r} is not a number") from None
        if columns not in (0, len(cells)):
            raise FormatError(
                f"{where} has {len(cells)} columns, but the rows before it have {columns}"
            )
        columns = len(cells)
