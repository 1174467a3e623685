"""Diverging replicas are found within TF_MPI_CHECK steps, with variable and rank."""

from __future__ import annotations

from typing import Any

import pytest

EVERY, DISTURBED = 4, 6  # as in replicas.py: the check before step 8 finds it, and step 9 raises
CASES = {
    "function": "w_function_True_False",
    "compiled": "w_function_True_True",
    "eager Keras": "w_keras",
    "eager v1": "w_v1",
    "session ref": "w@",
    "session resource": "w@",
}


@pytest.fixture(scope="module")
def ranks(launch, scripts) -> list[dict[str, Any]]:
    return launch(scripts / "replicas.py", np=3, env={"TF_MPI_CHECK": str(EVERY)}).check().results


@pytest.mark.parametrize("case", CASES)
def test_a_flipped_bit_is_found_and_named(ranks, case):
    said = {rank[case]["error"] for rank in ranks}
    assert len(said) == 1, "every rank reports the same"
    (text,) = said
    assert text.startswith(f"rank 2/3: the variable '{CASES[case]}"), text
    assert "differs from ranks 0 and 1: element [1, 1] is " in text
    assert "The checks up to step 4 of these variables found no difference" in text
    assert {rank[case]["step"] for rank in ranks} == {9}


def test_a_model_compared_in_parts_is_covered_over_several_checks(ranks):
    said = {(rank["parts"]["step"], rank["parts"]["error"]) for rank in ranks}
    assert len(said) == 1
    ((step, text),) = said
    assert step in (9, 13), "the first check, before step 4, has seen 8 of 24 bytes"
    assert "rank 2/3: the variable 'w_parts'" in text and "element [1, 1] is " in text


def test_an_assignment_on_one_rank_is_found_and_named(ranks):
    for rank in ranks:
        assert "rank 2/3: the variable 'w_assigned'" in rank["assigned"]["error"]
        assert "element [0] is " in rank["assigned"]["error"]
        assert rank["assigned"]["step"] == 9


@pytest.mark.parametrize("case", ["undisturbed", "fit", "threads"])
def test_equal_replicas_are_not_reported(ranks, case):
    for rank in ranks:
        assert rank[case] == {"step": None, "error": ""}


def test_eager_updates_leave_no_variables_behind(ranks):
    assert [rank["left"] for rank in ranks] == [0, 0, 0]


@pytest.mark.full
def test_a_flip_of_any_bit_of_a_larger_model_is_found(launch, scripts):
    """Flips bits at random places on random ranks: the next check names the right one."""
    run = launch(scripts / "flips.py", np=3, args=[5, 4], env={"TF_MPI_CHECK": "10"}, timeout=120)
    for found in run.check().results:
        assert found["flips"] == found["found"] == found["right"] == 5
        assert found["late"] == 0
