"""docs/semantics.md: its numbers are right, its entries name tests, its table leads to rules."""

from __future__ import annotations

import re
from pathlib import Path

from reference import reference

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "semantics.md"


def test_documented_differences_to_one_process(launch, scripts):
    (alone,) = reference(scripts / "not_equal.py")
    assert alone == {"summed": 4.0}
    for rank in launch(scripts / "not_equal.py", np=2).check().results:
        assert rank["summed"] == 2.0  # the mean of 1 and 3, not their sum


def test_every_row_names_an_existing_test():
    text = PAGE.read_text()
    rows = [
        " ".join(row.split()) for row in re.findall(r"^- \*\*(.+?)(?=\n\n|\n- )", text, re.M | re.S)
    ]
    assert len(rows) > 30
    for row in rows:
        found = re.findall(r"`(tests/[\w/]+\.py)`", row.rpartition("(")[2])
        assert found, f"no test: {row}"
        for name in found:
            assert (ROOT / name).exists(), row


def test_the_table_gives_an_answer_and_a_rule_for_each_script():
    text = PAGE.read_text()
    rules = re.findall(r"^## (\d+)\. ", text, re.M)
    rows = re.findall(r"^\| (?!my script|---)(.+) \| (.+) \| \[(\d+)\]\(#\3-", text, re.M)
    assert len(rows) == text.count("\n| ") - 2
    assert {rule for _, _, rule in rows} == set(rules)
    answers = {re.split(r"\W", answer)[0] for _, answer, _ in rows}
    assert answers == {"equal", "warned", "error", "differs"}
