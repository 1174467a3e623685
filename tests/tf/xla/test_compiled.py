"""Compiled steps: ranks that train inside XLA clusters equal one process on the whole batch."""

from __future__ import annotations

import pytest
from compare import assert_close, assert_same

from extras import load
from installed import needs_compiled_steps
from reference import reference
from tiers import full

pytestmark = needs_compiled_steps

OPS = ("descend", "momentum", "adam")
CASES = (
    "custom_loop",
    "uneven_batches",
    "many_at_once",
    "loop_and_branch",
    "inside_a_function",
    *(f"{op} {mode}" for op in OPS for mode in ("compiled", "plain")),
)


ERRORS = {
    "integers": "the average of 't (compiled)' is int32; only floating and complex tensors can be",
    "dynamic": "Error: 'some (compiled)' has a dynamic shape inside a compiled cluster, where",
    "inside": "UnimplementedError: cannot average this sparse gradient over ranks inside a",
    "no names": "an average op lacks its attributes",
    "outside": "was traced to average a sparse gradient in a compiled function, but runs outside",
}


@pytest.fixture(scope="module")
def alone(launch, scripts):
    return reference(scripts / "compiled.py", args=["train"])[0]


@pytest.fixture(scope="module", params=[2, full(3)])
def ranks(request, launch, scripts):
    return (
        launch(scripts / "compiled.py", np=request.param, args=["train"], pooled=True)
        .check()
        .results
    )


@pytest.mark.parametrize("case", CASES)
def test_equals_one_process(ranks, alone, case):
    assert alone.keys() == set(CASES)
    assert_same([rank[case] for rank in ranks])
    assert_close(ranks[0][case], alone[case], 1e-5)


@pytest.mark.parametrize("op", OPS)
def test_a_cluster_equals_the_same_ops_outside(ranks, op):
    assert_close(ranks[0][f"{op} compiled"], ranks[0][f"{op} plain"], 1e-5)


def test_an_error_reaches_every_rank_and_stops_one_step(launch, scripts):
    for rank in launch(scripts / "compiled.py", args=["errors"], pooled=True).check().results:
        assert rank["shape"].startswith("InvalidArgumentError")
        assert "the ranks disagree on 't (compiled)': rank" in rank["shape"]
        for case, words in ERRORS.items():
            assert words in rank[case], rank[case]
        assert rank["good"] == rank["float64"] == rank["good again"] == "1.0"


@pytest.mark.full
def test_a_rank_that_stops_ends_the_compiled_step_of_the_other(launch, scripts):
    run = launch(scripts / "compiled.py", args=["raise"], timeout=60)
    assert run.returncode != 0
    # UnavailableError, or its form if it comes from a function.
    heard = run.stdout[0]
    assert heard.startswith(("HEARD UnavailableError: ", "HEARD InternalError: "))
    assert "rank 1/2 has stopped: RuntimeError: rank 1 has had enough" in heard


@pytest.mark.full
def test_control_of_ranks_without_averaging(launch, scripts, alone):
    off = {"TF_MPI_ENABLE": "0", "TEST_UNSYNCHRONISED": "1"}
    ranks = launch(scripts / "compiled.py", args=["train"], env=off).check().results
    for case in CASES:
        with pytest.raises(AssertionError, match="differs from rank 0"):
            assert_same([rank[case] for rank in ranks])
        with pytest.raises(AssertionError, match="differences above"):
            assert_close(ranks[1][case], alone[case], 1e-5)


@pytest.mark.parametrize(("rows", "is_sparse"), [(33, True), (34, False)])
def test_a_sparse_gradient_travels_as_what_moves_fewer_bytes(monkeypatch, rows, is_sparse):
    """Two ranks gather 12 bytes per row, or reduce 100 rows of 4 bytes twice."""
    compiled = load("tensorflow.mpi._src.average.compiled")
    monkeypatch.setattr(compiled.group, "group_size", 2)
    slices = compiled.tf.IndexedSlices(
        compiled.tf.zeros([rows, 1]), compiled.tf.range(rows), compiled.tf.constant([100, 1])
    )
    assert compiled._rows_if_sparse(slices) == (rows if is_sparse else None)
