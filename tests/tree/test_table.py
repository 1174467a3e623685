"""The table of replacements: its page is up to date, and its rows are complete."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from extras import load

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tensorflow_patches" / "python"
PAGE = ROOT / "docs" / "replaced.md"


@pytest.fixture(scope="module")
def table() -> Any:
    return load("tensorflow.mpi._src.replaced.table")


def test_replaced_md_is_printed_from_the_table(table: Any) -> None:
    how = "print it again: python -m tensorflow.mpi config --replaced"
    assert PAGE.read_text().endswith(table.describe() + "\n"), how


def test_each_row_has_a_reason_and_a_test(table: Any) -> None:
    for row in table.TABLE:
        reason = row.reason or table.hooks.described(row.target)[1]
        assert 0 < len(reason.split()) <= 10, (row.target, reason)
        assert (ROOT / "tests" / row.test).is_file(), row.target


def test_hooks_name_the_patched_files_that_call_them(table: Any) -> None:
    """A patch calls each hook in the file, and in the class, that its line in the table names."""
    patches = "".join(p.read_text() for p in (PACKAGE.parent / "patches").glob("*.patch"))
    files = re.split(r"^\+\+\+ b/", patches, flags=re.M)[1:]
    for row in table.PATCHES:
        where, _ = table.hooks.described(row.target)
        for name in re.findall(r"\w+\.py", where):
            found = [file for file in files if file.partition("\n")[0].endswith(f"/{name}")]
            assert any(f"_mpi_hooks.{row.target}" in file for file in found), (row.target, name)
            classes = re.findall(rf"{name}, (\w+)\.\w+", where)
            assert all(f"class {kind}" in "".join(found) for kind in classes), row.target
