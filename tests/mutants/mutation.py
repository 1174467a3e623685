"""One way of breaking the product, for tests/mutations.py."""

from __future__ import annotations

from dataclasses import dataclass

QUICK, FULL = "not full and not alone", "not alone"


@dataclass(frozen=True)
class Mutation:
    """`old`, which is in one file of the product, becomes `new`; these tests must notice."""

    name: str
    what: str
    old: str
    new: str
    tests: tuple[str, ...]
    cpp: bool = False
    tier: str = QUICK  # FULL where no test of the quick tier is of it
    # Bazel's, in place of `tests`; `where` is the file of `old`, if its line is in several.
    targets: tuple[str, ...] = ()
    where: str = ""
    # In place of `tests`, scripts of tests/gpu/standin, which end with 0 if all is well; the
    # environment must hold the wheel for GPUs.
    standin: tuple[str, ...] = ()
