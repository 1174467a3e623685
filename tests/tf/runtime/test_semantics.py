"""The rows of docs/semantics.md that say no: N ranks get what they say; and each row has a test."""

from __future__ import annotations

import re
from pathlib import Path

from reference import reference

ROOT = Path(__file__).parents[3]


def test_what_two_ranks_do_not_get_as_one_process(launch, scripts):
    (alone,) = reference(scripts / "not_equal.py")
    assert alone == {"summed": 4.0}
    for rank in launch(scripts / "not_equal.py", np=2).check().results:
        assert rank["summed"] == 2.0  # the mean of 1 and 3, not their sum


def test_every_row_names_a_test_that_exists():
    text = (ROOT / "docs" / "semantics.md").read_text()
    rows = [
        " ".join(row.split()) for row in re.findall(r"^- \*\*(.+?)(?=\n\n|\n- )", text, re.M | re.S)
    ]
    assert len(rows) > 30
    for row in rows:
        found = re.findall(r"`(tests/[\w/]+\.py)`", row.rpartition("(")[2])
        assert found, f"no test: {row}"
        for name in found:
            assert (ROOT / name).exists(), row
