"""Training scripts as people write them, on ranks whose programs differ in what they may differ."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from compare import assert_close, assert_same

TEXT = (Path(__file__).parent / "scripts" / "cases.py").read_text()
SAME_NAME = "extra_variable_of_the_same_name_eager"
CASES = [name for name in re.findall(r"^@case\ndef (\w+)", TEXT, re.M) if name != SAME_NAME]


class Runs(NamedTuple):
    """What two ranks, and one process on the data of both, printed: {case: {name: array}}."""

    ranks: list[dict[str, Any]]
    alone: dict[str, Any]


@pytest.fixture(scope="module")
def runs(launch, scripts) -> Runs:
    ranks = launch(scripts / "cases.py", np=2, timeout=180).check().results
    return Runs(ranks, launch(scripts / "cases.py", np=0, timeout=180).check().results[0])


@pytest.mark.parametrize("case", CASES)
def test_equals_one_process(runs, case):
    assert_same(runs.ranks, case)
    assert_close(runs.ranks[1][case], runs.alone[case], 1e-5)


def test_an_extra_variable_of_the_same_name_in_an_eager_loop(launch, scripts):
    assert_same(launch(scripts / "cases.py", np=2, args=[SAME_NAME]).check().results)
