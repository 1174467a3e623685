"""DDL's options, as in DDL_OPTIONS="-mode b:4x2 -dump_iter 100", and their meaning here.

A mode is ALGORITHM:AxBx...xN: A ranks form a group on the lowest level, B such groups form a group
on the next level, and so on; N is the number of nodes. The transport chooses the algorithm, so the
letter, or the number of levels in its place, is only checked for validity.
"""

from __future__ import annotations

import dataclasses
import math
import re
import shlex

_MODE = re.compile(r"([a-z]|[1-9]):([1-9]\d*(?:x[1-9]\d*)*)")
_OPTIONS = ("-mode", "-dump_iter")  # each takes a value


class ModeError(ValueError):
    """Invalid options; the text says why."""


@dataclasses.dataclass(frozen=True)
class Mode:
    """`shape`: the number of members on each level, from the lowest."""

    text: str
    shape: tuple[int, ...]

    @property
    def ranks(self) -> int:
        return math.prod(self.shape)

    @property
    def topology(self) -> str:
        """The value for TF_MPI_TOPOLOGY: the number of nodes, and of ranks on each."""
        nodes = self.shape[-1] if len(self.shape) > 1 else 1
        return f"{nodes}x{self.ranks // nodes}"

    def check(self, ranks: int) -> None:
        """Raises ModeError unless this shape has `ranks` ranks."""
        if self.ranks != ranks:
            raise ModeError(
                f"mode {self.text} needs {self.ranks} ranks, but there are {ranks}: start "
                f"{self.ranks}, or pass a mode whose numbers multiply to {ranks}"
            )


def parse_mode(text: str) -> Mode:
    """Raises ModeError."""
    match = _MODE.fullmatch(text)
    if match is None:
        raise ModeError(f"mode '{text}' is not accepted; accepted: LETTER:AxBx..., such as b:4x2")
    shape = tuple(int(number) for number in match[2].split("x"))
    if match[1].isdigit() and int(match[1]) != len(shape):
        raise ModeError(f"mode '{text}' declares {match[1]} levels but has {len(shape)}")
    return Mode(text, shape)


@dataclasses.dataclass(frozen=True)
class Options:
    mode: Mode | None = None
    dump_iter: int = 0  # if set, ddl.init() refers to TF_MPI_STATS


def parse_options(text: str) -> Options:
    """Raises ModeError for an unknown option."""
    try:
        words = shlex.split(text)
    except ValueError as error:  # a quote without its partner
        raise ModeError(f"DDL options '{text}' are not accepted: {error}") from None
    mode, dump_iter = None, 0
    while words:
        word = words.pop(0)
        if word not in _OPTIONS:
            raise ModeError(f"DDL option '{word}' is unknown; accepted: {', '.join(_OPTIONS)}")
        if not words:
            raise ModeError(f"DDL option {word} needs a value")
        value = words.pop(0)
        if word == "-mode":
            mode = parse_mode(value)
        elif value.isdecimal():
            dump_iter = int(value)
        else:
            raise ModeError(f"-dump_iter {value} is not accepted; accepted: a number of steps")
    return Options(mode, dump_iter)
