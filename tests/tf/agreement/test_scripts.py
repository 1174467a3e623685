"""Ordinary training scripts on ranks whose programs differ where they may."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from compare import assert_close, assert_same

from reference import reference
from tiers import full

TEXT = (Path(__file__).parent / "cases.py").read_text()
SAME_NAME = "extra_variable_of_the_same_name_eager"
CASES = [name for name in re.findall(r"^@case\ndef (\w+)", TEXT, re.M) if name != SAME_NAME]


class Runs(NamedTuple):
    """The output of two ranks, and of one process on the data of both: {case: {name: array}}."""

    ranks: list[dict[str, Any]]
    alone: dict[str, Any]


@pytest.fixture(scope="module")
def runs(launch, scripts) -> Runs:
    ranks = launch(scripts / "cases.py", np=2, timeout=180, pooled=True).check().results
    return Runs(ranks, reference(scripts / "cases.py")[0])


# TensorFlow runs the two updates in either order, so the ranks round differently.
UNORDERED = "two_of_a_kind_in_one_run"


@pytest.mark.parametrize("case", CASES)
def test_equals_one_process(runs, case):
    if case == UNORDERED:
        assert_close(runs.ranks[0][case], runs.ranks[1][case], 1e-6)
    else:
        assert_same(runs.ranks, case)
    assert_close(runs.ranks[1][case], runs.alone[case], 1e-5)


@pytest.mark.full
def test_an_extra_variable_of_the_same_name_in_an_eager_loop_gives_equal_values(launch, scripts):
    assert_same(launch(scripts / "cases.py", np=2, args=[SAME_NAME]).check().results)


@pytest.mark.parametrize("order", [full("same"), "opposite"])
def test_two_sessions_in_two_threads_are_not_mixed_up(launch, scripts, order):
    """They use the same names, so the sessions must be told apart in another way."""
    ranks = launch(scripts / "threads.py", np=2, args=[order]).check().results
    alone = reference(scripts / "threads.py", args=[order])[0]
    assert_same(ranks)
    for session, state in alone.items():
        assert_close(ranks[1][session], state, 1e-5)


@pytest.mark.parametrize(
    "mode, steps",
    [
        ("function", "10,5"),
        full("function", "15,10,5"),
        full("session", "5,10,15"),
        full("eager", "4,9"),
    ],
)
def test_ranks_with_fewer_steps_leave_the_average(launch, scripts, mode, steps):
    """The others continue, also without rank 0's script, and average over the remaining ranks."""
    args, ranks = [mode, steps], len(steps.split(","))
    run = launch(scripts / "uneven.py", np=ranks, args=args).check()
    assert max(rank["distance"] for rank in run.results) < 1e-5
    assert f"the script has ended on 1 of {ranks} ranks" in run.stderr[0]


@pytest.mark.full
def test_a_cancelled_step_can_be_repeated(launch, scripts):
    ranks = launch(scripts / "timeout.py", np=2).check().results
    alone = reference(scripts / "timeout.py")[0]
    assert ranks[0]["error"] in ("DeadlineExceededError", "CancelledError")
    assert 0.5 < ranks[0]["waited"] < 4
    assert alone["error"] == ranks[1]["error"] == ""
    assert_same(ranks, "state")
    assert_close(ranks[1]["state"], alone["state"], 1e-5)
