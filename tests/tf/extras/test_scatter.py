"""Scatters, such as those of Keras's embeddings: stock values, without copying the table per
read."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def ranks(launch, scripts) -> list[dict[str, Any]]:
    env = {"TF_MPI_EXTRAS": "scatter_in_place,rows_ahead"}
    return launch(scripts / "scatter.py", np=2, env=env).check().results


@pytest.fixture(scope="module")
def stock(launch, scripts) -> dict[str, Any]:
    run = launch(scripts / "scatter.py", np=1, env={"TF_MPI_ENABLE": "0"}).check()
    return run.results[0]


@pytest.mark.parametrize("case", ["tables", "errors", "strings", "beside"])
def test_scatters_equal_stock_tensorflow(ranks, stock, case):
    for rank in ranks:
        assert rank[case] == stock[case]


def test_the_cases_reach_the_errors_that_they_test(stock):
    assert len(stock["tables"]) == 3 * 6 * 2 * 4
    assert "indices[200] = 50 is not in [0, 50)" in stock["errors"]["range"]
    assert all("no error" not in error for error in stock["errors"].values())
    assert stock["beside"] == [1.0, 2.0, 0.0, 162.0, 163.0, 1.0]


def test_values_that_were_read_do_not_change(ranks):
    for rank in ranks:
        assert rank["held"] == {"reads": [[0.0], [1.0], [2.0], [3.0]], "table": [4.0]}


def test_threads_lose_no_update_and_read_no_partial_one(ranks):
    """Stock TensorFlow does lose updates and read partial ones."""
    for rank in ranks:
        assert rank["threads"] == {"reads": 60, "mixed": 0, "table": [600.0]}
