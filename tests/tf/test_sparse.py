"""Sparse gradients: N ranks with rows of their own against one process with the mean of all rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from compare import assert_close, assert_same

# bfloat16 rows are summed in float32 and rounded once; a dense reduction rounds a rank's own
# duplicates before.
TOLERANCE = {"float32": 1e-5, "float64": 1e-12, "bfloat16": 1e-5}
NUM_OPS = 11 + 12  # SparseApply*, ResourceSparseApply*


class Runs(NamedTuple):
    """What the processes printed: {case: {state: array}}."""

    ranks: list[dict[str, Any]]
    alone: dict[str, Any]


@pytest.fixture(scope="module", params=["2 auto", "3 dense", "3 gather"])
def ops(request, launch, scripts) -> Runs:
    size, mode = request.param.split()
    script = scripts / "sparse_ops.py"
    ranks = launch(script, np=int(size), args=[size], env={"TF_MPI_SPARSE": mode}).check().results
    alone = launch(script, np=0, args=[size]).check().results[0]
    if mode == "dense":
        alone = {case: states for case, states in alone.items() if "bfloat16" not in case}
    return Runs(ranks, alone)


def test_every_sparse_op_equals_one_process(ops):
    assert len({case.split()[0] for case in ops.alone}) == NUM_OPS
    for case, states in ops.alone.items():
        assert_close(ops.ranks[-1][case], states, TOLERANCE[case.split()[2]])


def test_ranks_are_equal_to_the_bit(ops):
    assert_same(ops.ranks)


def test_control_of_ranks_that_average_nothing(launch, scripts):
    off = {"TF_MPI_ENABLE": "0", "TEST_UNSYNCHRONISED": "1"}
    results = launch(scripts / "sparse_ops.py", args=["2"], env=off).check().results
    for case in results[0]:
        with pytest.raises(AssertionError, match="differs from rank 0"):
            assert_same(results, case)
