"""Before the first forward pass every rank has rank 0's variables, slots and counters."""

from __future__ import annotations

from typing import Any

import pytest

from extras import needs

CASES = (
    "eager",
    "function",
    "session ref",
    "session resource",
    "session ref, restored",
    "session resource, restored",
    "callable ref",
    "callable resource",
    "callable ref, options",
    "callable resource, options",
)


@pytest.fixture(scope="module")
def ranks(launch, scripts, tmp_path_factory) -> list[dict[str, Any]]:
    args = [tmp_path_factory.mktemp("checkpoints")]
    return launch(scripts / "start.py", np=2, args=args).check().results


@pytest.mark.parametrize("case", CASES)
def test_all_ranks_start_with_rank_0s_values(ranks, case):
    for rank in ranks:
        assert rank[case]["loss"] < 1e-4, "the first forward pass saw other values than rank 0's"
        assert rank[case]["counter"] == 0
        assert rank[case]["slot"] < 1e-5
        assert rank[case]["variable"] < 1e-5
    assert ranks[0][case]["bytes"] == ranks[1][case]["bytes"]


@pytest.mark.parametrize("case", ["checkpoint function", "checkpoint eager"])
def test_a_checkpoint_restored_on_rank_0_only_reaches_all(ranks, case):
    for rank in ranks:
        assert rank[case]["losses"][0] == rank[case]["losses"][1]
        assert rank[case]["first"] == rank[case]["second"] == ranks[0][case]["first"]


def test_variables_created_after_the_first_tape_are_synchronized_at_an_update(ranks):
    """Variable and slot are synchronized at their first update, after a forward pass with other
    values.

    The counter is not synchronized, because a raw op does not refer to it.
    """
    for first, second in zip(*(rank["late eager"]["bytes"][:2] for rank in ranks)):
        assert first == second


@pytest.mark.parametrize("kind", ["no value", "other shapes"])
def test_a_variable_whose_first_update_fails_is_synchronized_at_the_next(ranks, kind):
    assert ranks[0]["failed"][kind] == ranks[1]["failed"][kind]


@pytest.mark.parametrize("kind", ["ref", "resource"])
def test_an_imported_graph_is_synchronized_on_its_own(ranks, kind):
    assert ranks[0][f"imported {kind}"] == ranks[1][f"imported {kind}"]


@pytest.mark.parametrize("case", ["averaged", "looked at ref", "looked at resource"])
def test_functions_that_do_not_train_synchronize_nothing(ranks, case):
    assert ranks[0][case] == ranks[1][case]


def test_a_condition_that_trains_starts_synchronized(ranks):
    assert ranks[0]["conditional"] == ranks[1]["conditional"]


@needs("synchronous_updates")
def test_a_kernel_that_meets_another_variable_is_an_error(ranks):
    """It must not wait for the other ranks, so it raises an error."""
    for rank in ranks:
        assert "is now used to update 'other@" in rank["other variable"], rank["other variable"]


def test_random_generators_differ_by_rank(ranks):
    noise, value = zip(*(rank["generator"] for rank in ranks))
    assert noise[0] != noise[1]
    assert value[0] == value[1]


def test_variables_created_by_a_step_start_with_rank_0s_values(ranks):
    """The first call of a function runs their initializers and also synchronizes them.

    [8, 1] is a multiple of a rank's number of samples, so the draw counts as per-sample noise. Its
    variable must still start as in one process before the first forward pass.
    """
    for rank in ranks:
        assert rank["made in a step"] == ranks[0]["made in a step"]
        for function in (False, True):
            assert rank["made in a step"][f"noise, {function}"][0] == rank["one process"]
