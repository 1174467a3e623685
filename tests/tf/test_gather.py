"""Rows of large tables in compiled functions: a call of ours reads them ahead."""

from __future__ import annotations

import pytest

SCRIPT = "compiled_gather.py"


@pytest.fixture(scope="module")
def ranks(launch, scripts):
    return launch(scripts / SCRIPT, np=2).check().results


def test_rows_have_the_bits_of_the_table(ranks):
    for rank in ranks:
        assert len(rank["cases"]) == 8
        for case, found in rank["cases"].items():
            assert found == [True, 1], case


def test_xla_gathers_all_else(ranks):
    for rank in ranks:
        assert len(rank["others"]) == 6
        for case, found in rank["others"].items():
            assert found == [True, 0], case


def test_a_table_that_the_same_step_updates_is_read_before(ranks):
    for rank in ranks:
        found = rank["trained"]
        assert (found["same"], found["calls"]) == (True, 1)
        assert found["distance"] < 1e-5


def test_one_process_has_xlas_own(launch, scripts):
    (alone,) = launch(scripts / SCRIPT, np=1).check().results
    assert set(map(tuple, {**alone["cases"], **alone["others"]}.values())) == {(True, 0)}
    assert (alone["trained"]["same"], alone["trained"]["calls"]) == (True, 0)
