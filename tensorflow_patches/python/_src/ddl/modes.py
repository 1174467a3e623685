"""DDL's options, as in DDL_OPTIONS="-mode b:4x2 -dump_iter 100", and what they mean here.

A mode is ALGORITHM:AxBx...xN: A ranks on the lowest level, B of these on the next, and so on; N is
the number of nodes. Which algorithm reduces is decided by the transport, so the letter, or the
number of levels in its place, only has to make sense.
"""

from __future__ import annotations

import dataclasses
import math
import re
import shlex

_MODE = re.compile(r"([a-z]|[1-9]):([1-9]\d*(?:x[1-9]\d*)*)")
_WITH_A_VALUE = ("-mode", "-dump_iter")


class ModeError(ValueError):
    """Options that cannot be; the text says why."""


@dataclasses.dataclass(frozen=True)
class Mode:
    """`shape`: ranks of each level, from the lowest."""

    text: str
    shape: tuple[int, ...]

    @property
    def ranks(self) -> int:
        return math.prod(self.shape)

    @property
    def topology(self) -> str:
        """As TF_MPI_TOPOLOGY has it: the nodes, and the ranks of each."""
        nodes = self.shape[-1] if len(self.shape) > 1 else 1
        return f"{nodes}x{self.ranks // nodes}"

    def check(self, ranks: int) -> None:
        """Raises ModeError unless so many ranks have this shape."""
        if self.ranks != ranks:
            raise ModeError(
                f"mode {self.text} is a shape of {self.ranks} ranks, and there are {ranks}: start "
                f"{self.ranks}, or give a mode whose numbers multiply to {ranks}"
            )


def parse_mode(text: str) -> Mode:
    """Raises ModeError."""
    match = _MODE.fullmatch(text)
    if match is None:
        raise ModeError(f"mode '{text}' is not accepted; accepted: LETTER:AxBx..., as b:4x2")
    shape = tuple(int(number) for number in match[2].split("x"))
    if match[1].isdigit() and int(match[1]) != len(shape):
        raise ModeError(f"mode '{text}' says {match[1]} levels and has {len(shape)}")
    return Mode(text, shape)


@dataclasses.dataclass(frozen=True)
class Options:
    mode: Mode | None = None
    dump_iter: int = 0


def parse_options(text: str) -> Options:
    """Raises ModeError for an option that is not known here."""
    words = shlex.split(text)
    mode, dump_iter = None, 0
    while words:
        word = words.pop(0)
        if word not in _WITH_A_VALUE:
            raise ModeError(f"DDL option '{word}' is not known; known: {', '.join(_WITH_A_VALUE)}")
        if not words:
            raise ModeError(f"DDL option {word} needs a value")
        value = words.pop(0)
        if word == "-mode":
            mode = parse_mode(value)
        elif value.isdecimal():
            dump_iter = int(value)
        else:
            raise ModeError(f"-dump_iter {value}: a number of steps")
    return Options(mode, dump_iter)
