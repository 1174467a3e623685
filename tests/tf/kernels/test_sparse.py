"""Sparse gradients: N ranks with their own rows equal one process with the mean."""

from __future__ import annotations

import re

import pytest
from compare import assert_close, assert_same, decode

from extras import is_on
from installed import needs_compiled_steps
from reference import reference
from tiers import full

NUM_OPS = 11 + 12  # SparseApply*, ResourceSparseApply*
TOLERANCE = {"float32": 1e-5, "float64": 1e-12, "bfloat16": 1e-5}


@pytest.fixture(scope="module")
def ops_alone(launch, scripts):
    """The output of one process for each number of ranks: {case: {state: array}}."""
    return reference(scripts / "sparse_ops.py")[0]


@pytest.mark.parametrize("size, mode", [(2, "auto"), full(3, "dense")])
def test_every_sparse_op_equals_one_process(launch, scripts, ops_alone, size, mode):
    env = {"TF_MPI_SPARSE": mode} if mode != "auto" else None  # auto is the default
    ranks = launch(scripts / "sparse_ops.py", np=size, env=env, pooled=size == 2).check().results
    alone = ops_alone[str(size)]
    assert len({case.split()[0] for case in alone}) == NUM_OPS
    assert_same(ranks)
    for case, states in alone.items():
        assert_close(ranks[-1][case], states, TOLERANCE[case.split()[2]])


@pytest.mark.full
def test_every_divided_sparse_op_equals_one_process(launch, scripts):
    (alone,) = reference(scripts / "sparse_ops.py", args=["wide"])
    env = {"TF_MPI_EXTRAS": "divided_updates"}
    ranks = launch(scripts / "sparse_ops.py", np=2, args=["wide"], env=env).check().results
    assert_same(ranks)
    for case, states in alone["2"].items():
        assert_close(ranks[-1][case], states, TOLERANCE[case.split()[2]])


@pytest.fixture(scope="module")
def v1_alone(launch, scripts):
    return reference(scripts / "sparse_v1.py")[0]


@pytest.mark.full
def test_every_compat_v1_optimizer_equals_one_process(launch, scripts, v1_alone):
    ranks = launch(scripts / "sparse_v1.py", np=2).check().results
    assert_same(ranks)
    for case, values in v1_alone.items():
        assert_close(ranks[0][case], values, 1e-5)


@pytest.mark.parametrize(
    "kind, size",
    [("quick", 2), full("keras", 2), full("tf_keras", 2), full("more", 2), full("keras", 3)],
)
def test_an_embedding_of_keras_equals_one_process(launch, scripts, kind, size):
    """The gradients also stay sparse, even in compiled steps."""
    (alone,) = reference(scripts / "sparse_keras.py", args=[kind])
    ranks = launch(scripts / "sparse_keras.py", np=size, args=[kind], pooled=True).check().results
    for case, theirs in alone.items():
        assert_same([rank[case]["values"] for rank in ranks])
        assert_close(ranks[0][case]["values"], theirs["values"], 1e-5)
        assert "sparse" in theirs["kinds"] or case.startswith(("clipped", "SGD", "Adam clipped"))
        assert ranks[0][case]["kinds"] == theirs["kinds"], case


@pytest.mark.full
def test_control_of_ranks_without_averaging(launch, scripts, v1_alone):
    off = {"TF_MPI_ENABLE": "0", "TEST_UNSYNCHRONISED": "1"}
    results = launch(scripts / "sparse_v1.py", env=off).check().results
    for case, values in v1_alone.items():
        if "fed alike" in case:
            continue
        with pytest.raises(AssertionError, match="differs from rank 0"):
            assert_same(results, case)
        with pytest.raises(AssertionError, match="differences above"):
            assert_close(results[1][case], values, 1e-5)


@pytest.fixture(scope="module")
def edges(launch, scripts):
    return launch(scripts / "sparse_edges.py", np=2).check().results


def test_averages_of_rows_in_every_mode(edges):
    for rank in edges:
        assert rank["weighted"] == {"2": 1.0, "5": 3.0}
        # Where dense moves fewer bytes, the whole is reduced: the first of its requests moves
        # nothing.
        assert rank["many_rows"] < 1e-5
        full, requests = rank["every_row_of_every_rank"]
        assert full == {str(row): row + 5.0 for row in range(6)} and requests == 2
        some, requests = rank["some_rows"]
        assert some == {"0": 0.5, "1": 6.0, "3": 0.5} and requests == 1
        assert rank["shape_of_no_variable"] == [{"3": 1.0, "4": 1.0, "5": 1.0}] * 4
        shape, size, rows = rank["function_that_knows_its_shapes"]
        assert (shape, size, rows) == ([3, 2], 3, {"0": 0.5, "1": 1.0, "5": 1.5})


@needs_compiled_steps
def test_averages_of_rows_in_compiled_steps(edges):
    for number, rank in enumerate(edges):
        once = {"0": 0.5, "1": 0.5, "3": 0.5, "7": 3.5, "9": 0.5}
        assert rank["compiled_rows"] == [once, once, {"2": 1.0, "5": 3.0}]
        written = {"0": 3.0, "1": 1.0, "5": 3.0, "6": 3.0, "999": 1.0}
        assert rank["compiled_read_and_write_back"] == written
        assert rank["compiled_full_table"] == {str(row): row + 5.0 for row in range(6)}
        ones = [[1.0, 1.0], [1.0, 1.0]]
        own = 2.0 + number  # row 905
        # The average v adds v - 3 v + 2 v + 3 * 2 v - v * v.
        rows = {"0": 3.75, "1": 6.0, "5": 7.75, "6": 1.0, "905": own, "999": 1.0}
        after = {row: [value, value] for row, value in rows.items()}
        ours = is_on("compiled_scatter")
        assert rank["compiled_scatters"] == [[ones, after, 5 if ours else 0]] * 2
        assert rank["compiled_clears"] == [0 if ours else 1, 1]
        assert rank["compiled_constants"] == [-1.5, -1.5, -0.5, -1.0]
    assert edges[0]["compiled_without_room"] == "none"
    text = edges[1]["compiled_without_room"]
    assert "have 3000 rows of the sparse gradient of 'table (room)'" in text, text
    assert "has room for 4" in text
    assert "TF_MPI_SPARSE=dense" in text


def test_a_dense_gradient_on_one_rank_is_an_error_that_names_both(edges):
    for rank in edges:
        for case, sparse in (("mixed_in_raw_ops", 1), ("mixed_in_keras", 0)):
            text = rank[case]
            assert "the ranks disagree on 'mixed (" in text
            assert f"rank {sparse} has sparse allgather of float32 [1, 2]" in text
            assert f"rank {1 - sparse} has allreduce average of float32 [6, 2]" in text
        assert rank["bad_index"].startswith("InvalidArgumentError") and "42" in rank["bad_index"]
        assert rank["no_rows"].startswith("InvalidArgumentError")


@needs_compiled_steps
def test_a_dense_gradient_on_one_rank_is_an_error_in_compiled_steps(edges):
    for rank in edges:
        text = rank["mixed_in_compiled_steps"]
        assert "the ranks disagree on 'table (compiled mixed)'" in text
        assert "rank 0 has sparse allgather" in text and "rank 1 has allreduce average" in text


def test_a_rank_that_has_ended_contributes_no_rows(edges):
    assert decode(edges[0]["alone_at_the_end"]).tolist() == [[8.0, 8.0]]


@pytest.fixture(scope="module")
def divided(launch, scripts):
    env = {"TF_MPI_EXTRAS": "divided_updates"}
    return launch(scripts / "sparse_divided.py", np=3, env=env).check().results


@pytest.mark.full
def test_a_divided_update_is_bitwise_equal_to_an_undivided_one(launch, scripts, divided):
    env = {"TF_MPI_EXTRAS": "none"}
    every = launch(scripts / "sparse_divided.py", np=3, env=env).check().results
    for ranks, requests in ((divided, 2), (every, 1)):  # the average and the rows
        for rank in ranks:
            for case in ("resource", "ref", "eager"):
                assert rank[case]["requests"] == requests
                assert rank[case]["distance"] < 1e-5
                assert rank[case]["digest"] == divided[0][case]["digest"], case
            assert rank["two_ops"] == 2, "an average for each, and no rows"
        # The ranks that continue after one has ended.
        alone = [rank["alone"] for rank in ranks if "alone" in rank]
        assert [one["requests"] for one in alone] == [requests] * 2
        for one in alone:
            assert one["distance"] < 1e-5
            assert one["digest"] == next(r["alone"]["digest"] for r in divided if "alone" in r)


@pytest.mark.full
def test_averaged_rows_that_differ_are_an_error_that_names_both_ranks(divided):
    texts = [rank["differ"] for rank in divided]
    for text in (text for both in texts for text in both):
        assert text.startswith("InvalidArgumentError")
        assert "(ResourceApplyAdagrad) rows': the averaged rows differ from those of rank" in text
        assert "in the same way on all ranks" in text
    assert all(re.search(r"in number: \d+ in place of \d+; the", fewer) for fewer, _ in texts)
    # An index that repeats a later one leaves the number of distinct ones, but changes their order.
    assert sum("of rank 0 in their indices" in another for _, another in texts) == 2
