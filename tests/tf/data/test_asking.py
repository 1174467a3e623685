"""Asking for the rank does not change a script; a script with its own data declares it."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def run(launch, scripts, tmp_path_factory):
    return launch(scripts / "asking.py", np=2, args=[tmp_path_factory.mktemp("asking")]).check()


@pytest.mark.parametrize("case", ["loop", "fit", "other_data", "save"])
def test_asking_for_the_rank_changes_nothing(run, case):
    first, second = run.results
    for rank in (first, second):
        assert rank["after"][case] == rank["before"][case]
    assert first["after"][case] == second["after"][case]


def test_different_data_are_reported_once_with_both_remedies(run):
    lines = [line for line in run.stderr[0].splitlines() if "have different arrays" in line]
    assert len(lines) == 1
    assert "call tf.mpi.own_data()" in lines[0] and "or set TF_MPI_SHARD=off" in lines[0]


def test_data_declared_as_own_are_not_divided(run):
    first, second = (rank["own"] for rank in run.results)
    assert first["drawn"] != second["drawn"] and first["predicted"] != second["predicted"]
    assert first["trained"] == second["trained"], "of both ranks' data"
    assert first["trained"] != run.results[0]["after"]["other_data"], "not of rank 0's"
