"""The type of a parameter: the values that it accepts, and how they are parsed and shown."""

from __future__ import annotations

import dataclasses
import os
import re
from typing import Any, Literal

Kind = Literal[
    "choice", "library", "bytes", "seconds", "steps", "path", "output", "folder", "topology",
    "extras",
]  # fmt: skip
# "same": ranks must have the same value, which the start checks; "rank 0": rank 0's value applies
# to all ranks; "own": each rank uses its own.
Ranks = Literal["same", "rank 0", "own"]
DEVICE_TRANSPORTS = ("auto", "mpi", "nccl", "ipc", "staged")  # in the order of core/device/choice.h
SPARSE_MODES = ("auto", "gather", "dense")  # in the order of glue/kernels/sparse_average.h
# Optimizations that only make steps faster: name -> description. As in glue/runtime/extras.cc.
EXTRAS = {
    "kept_memory": "memory of tensors of 1 MB and more that a step frees is kept for the next "
    "step; glibc would return it to the kernel and request it again. The total exceeds the "
    "previous peak by at most half of that peak and at most 256 MB; memory unused for 30 seconds "
    "is returned at the next such allocation",
    "scatter_in_place": "after an op has updated rows of a variable, TensorFlow copies the "
    "variable whenever all of it is read, as Keras's Embedding does in each step; this avoids the "
    "copies",
    "rows_ahead": "rows of large tables that a sparse update is about to change are prefetched",
    "compiled_scatter": "in compiled steps a function of this wheel adds the averaged rows to "
    "their variable",
    "divided_updates": "in a sparse optimizer op with 512 KB of averaged rows or more, one rank of "
    "the node updates each row, and the others copy the result; it is bitwise the same",
    "distinct_rows": "optimizers do not look for duplicates among averaged rows, which have none",
    "response_bypass": "ranks of one node agree on a repeated step without a message",
    "streaming_stores": "data that other ranks of the node read is written past the caches where "
    "cores share no cache, if timing both ways shows that this is faster",
    "synchronous_updates": "ops that follow an average run immediately, without TensorFlow's "
    "thread pool",
}
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}


class ConfigError(ValueError):
    """A variable has an invalid value; the text lists the accepted ones."""


@dataclasses.dataclass(frozen=True)
class Topology:
    """The shape of the group: `nodes` (None: as many as needed) with `ranks_per_node` ranks each
    (0: as the launcher says)."""

    nodes: int | None
    ranks_per_node: int


def _extras(text: str) -> tuple[str, ...] | None:
    """The names that `text` selects, in the order of EXTRAS; None if it is invalid."""
    if text in ("all", "none"):
        return tuple(EXTRAS) if text == "all" else ()
    words = text.split(",")
    without = all(word.startswith("-") for word in words)
    names = {word[1:] if without else word for word in words}
    if not names <= set(EXTRAS):
        return None
    return tuple(name for name in EXTRAS if (name in names) != without)


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One environment variable. `default` is text, as a user would write it."""

    name: str
    kind: Kind
    default: str
    help: str
    choices: tuple[str, ...] = ()
    low: float = 0
    or_zero: bool = False  # also accepts 0, which turns it off
    high: float = 31_536_000  # a year
    ranks: Ranks = "same"

    @property
    def accepted(self) -> str:
        """The accepted values, for messages and documentation."""
        if self.kind == "choice":
            return ", ".join("unset" if c == "" else c for c in self.choices)
        if self.kind == "library":
            return f"{', '.join(self.choices)}, or the path of a file"
        if self.kind == "path":
            return "the path of a file"
        if self.kind == "output":
            return "the path of a file to write, in a folder that exists"
        if self.kind == "folder":
            return "the path of a folder, which is created if it does not exist"
        if self.kind == "extras":
            return (
                "all, none, a comma-separated list of names, or of names with a leading - for all "
                f"except these; the names are {', '.join(EXTRAS)}"
            )
        if self.kind == "topology":
            return "auto, flat, or NODESxRANKS such as 2x4"
        low, high = f"{self.low:.0f}", f"{self.high:.0f}"
        if self.kind == "steps":
            return f"auto, off, or a number of steps from {low} to {high}"
        if self.kind == "bytes":
            return f"bytes from {low} to {high}, with an optional suffix k, m or g"
        return f"{'0, or ' if self.or_zero else ''}seconds from {low} to {high}"

    def parse(self, text: str) -> Any:
        """Returns the value as str, int (bytes, steps), float (seconds), Topology or names of
        EXTRAS. Raises ConfigError if it is not accepted."""
        value: Any = text.strip()
        if self.kind == "choice":
            if value in self.choices:
                return value
        elif self.kind == "library":
            if value in self.choices or os.path.isfile(value):
                return value
        elif self.kind == "path":
            if value == "" or os.path.exists(value):
                return value
        elif self.kind in ("folder", "output"):
            # Only rank 0 needs an output's folder; lifecycle/engine.py checks that it exists.
            return os.path.abspath(value) if value else ""
        elif self.kind == "extras":
            extras = _extras(value)
            if extras is not None:
                return extras
        elif self.kind == "topology":
            match = re.fullmatch(r"([1-9]\d{0,5})x([1-9]\d{0,5})", value)
            if value == "auto":
                return Topology(None, 0)
            if value == "flat":
                return Topology(None, 1)
            if match:
                return Topology(int(match[1]), int(match[2]))
        elif self.kind == "steps":
            if value in ("auto", "off"):
                return value
            if value.isdecimal() and self.low <= int(value) <= self.high:
                return int(value)
        elif self.kind == "bytes":
            match = re.fullmatch(r"(\d+)\s*([kmg]?)i?b?", value.lower())
            if match and self.low <= int(match[1]) * _UNITS[match[2]] <= self.high:
                return int(match[1]) * _UNITS[match[2]]
        else:
            try:
                seconds = float(value)
                if self.low <= seconds <= self.high or (self.or_zero and seconds == 0):
                    return seconds
            except ValueError:
                pass
        raise ConfigError(f"{self.name}={text!r} is not accepted; accepted: {self.accepted}")

    def shown(self, value: Any) -> str:
        """A value returned by `parse` as text; equal values have equal texts."""
        if isinstance(value, Topology):
            if value.nodes is None:
                return "flat" if value.ranks_per_node else "auto"
            return f"{value.nodes}x{value.ranks_per_node}"
        if isinstance(value, tuple):
            return "all" if value == tuple(EXTRAS) else ",".join(value) or "none"
        return str(value) or "unset"
