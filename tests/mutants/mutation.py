"""A mutation: one way to break the product, for tests/mutations.py."""

from __future__ import annotations

from dataclasses import dataclass

QUICK, FULL = "not full and not alone", "not alone"


@dataclass(frozen=True)
class Mutation:
    """Replaces `old`, which occurs in one file of the product, by `new`; these tests must
    notice."""

    name: str
    what: str
    old: str
    new: str
    tests: tuple[str, ...]
    cpp: bool = False
    tier: str = QUICK  # FULL if no test of the quick tier covers it
    # A Bazel target, instead of `tests`; `where` is the file of `old`, if several contain its line.
    targets: tuple[str, ...] = ()
    where: str = ""
    # Instead of `tests`, scripts of tests/gpu/standin, which exit with 0 on success; they need the
    # GPU wheel.
    standin: tuple[str, ...] = ()
