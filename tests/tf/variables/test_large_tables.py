"""A large table is never allocated twice, and still starts with rank 0's values."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def ranks(launch, scripts) -> list[dict[str, Any]]:
    # Each rank has its own samples.
    env = {"TF_MPI_SHARD": "off", "TF_MPI_EXTRAS": "scatter_in_place"}
    run = launch(scripts / "large_tables.py", np=2, env=env)
    return run.check().results


CASES = ["op", "keras", "keras fit", "compat_v1", "session ref", "session resource"]


@pytest.mark.parametrize("case", CASES)
def test_training_allocates_no_second_table(ranks, case):
    """256 MB, of which a step uses 1 MB, from the broadcast of rank 0's values on."""
    for rank in ranks:
        # fit also traces its function, which takes some MB
        assert rank[case]["grown"] < (64 if case == "keras fit" else 16) * 2**20
        assert rank[case]["values"] == [0.5, 0.0, 0.5, 1.0]


@pytest.mark.parametrize("kind", ["ref", "resource"])
def test_shared_memory_is_not_written_to(ranks, kind):
    for number, rank in enumerate(ranks):
        found = rank[f"shared {kind}"]
        assert found["values"] == [[0.75, 0.75, 1.0], [1.0] * 3, [10.0] * 3]
        assert found["fed"] == 10.0 + number, "the script's own array was written to"
