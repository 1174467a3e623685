"""The mutations still match the code: each changes exactly one place.

`tests/mutations.py` and the full tier of `tests/core` check that the tests notice them.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mutations import MUTATIONS, Mutation, places

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ROOT / "tensorflow_patches"


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_matches_one_place(mutation: Mutation) -> None:
    found = list(places(mutation, PRODUCT if mutation.cpp else PRODUCT / "python"))
    assert len(found) == 1, f"in {found}: rewrite it"
    assert found[0].read_text().count(mutation.old) == 1, f"more than once in {found[0]}"


def seds() -> Iterator[Any]:
    """(file, sed expression) for each mutant of the C++ tests."""
    for build in sorted((ROOT / "tests" / "core").rglob("BUILD.bazel")):
        for node in ast.walk(ast.parse(build.read_text())):
            mutants: dict[str, Any] = {}
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "mutant_tests":
                mutants = ast.literal_eval(node.args[0])
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "MUTANTS":
                lines = ast.literal_eval(node.value)
                mutants = {name: ("engine/recovery.cc", line) for name, line in lines.items()}
            for name, (file, line) in mutants.items():
                yield pytest.param(file, line, id=f"{build.parent.name}-{name}")


@pytest.mark.parametrize(("file", "line"), list(seds()))
def test_a_mutant_changes_its_file(file: str, line: str) -> None:
    path = PRODUCT / "core" / file
    changed = subprocess.run(["sed", "-e", line, path], check=True, capture_output=True, text=True)
    assert changed.stdout != path.read_text(), "its line no longer exists: rewrite it"
