"""The average of many tensors in one operation, as Keras and compat.v1 optimizers use it."""

from __future__ import annotations

import numpy as np
import pytest
from compare import decode

from tiers import full

CASES = (
    "eager",
    "of_a_function",
    "of_constants",
    "of_a_loop_and_a_branch",
    "of_parallel_iterations",
    "of_nested_functions",
    "after_a_retrace_on_rank_0",
    "of_a_session",
    "with_a_variable_read_in_place",
    "saved",
)
PRECISION = {"float16": 2e-3, "bfloat16": 1e-2}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("average")


@pytest.fixture(scope="module", params=[2, full(3)])
def ranks(request, launch, scripts, directory):
    args = ["values", directory / "model"]
    run = launch(scripts / "average.py", np=request.param, args=args, pooled=True).check()
    return run.results


def tensor(rank):
    return np.arange(4.0) + 1 + 10 * rank


def mean(size):
    return np.mean([tensor(rank) for rank in range(size)], axis=0)


@pytest.mark.parametrize("case", CASES)
def test_every_rank_gets_the_mean_in_every_way_to_run(ranks, case):
    for rank in ranks:
        values = [decode(value) for value in rank["means"][case]]
        assert len(values) == 3
        for number, value in enumerate(values, start=1):
            np.testing.assert_allclose(value, number * mean(len(ranks)), rtol=1e-6)


@pytest.mark.parametrize("mode", ["eager", "function"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_weighted_averages_ignore_a_rank_of_weight_0(ranks, dtype, mode):
    """Weights are unequal, and 0 on the last rank, whose tensors are NaN."""
    size = len(ranks)
    unequal = [2 * (rank + 1) / (size + 1) for rank in range(size)]
    silent = [size / (size - 1)] * (size - 1) + [0]
    for number, weights in enumerate([unequal, silent]):
        expected = sum(weight * tensor(rank) for rank, weight in enumerate(weights)) / size
        for rank in ranks:
            for value in rank["weights"][f"{dtype} {number} {mode}"]:
                got = decode(value)
                assert got.dtype.name == dtype
                tolerance = PRECISION.get(dtype, 1e-6)
                np.testing.assert_allclose(got.astype("complex128"), expected, rtol=tolerance)


def test_statistics_count_gradients_that_share_a_buffer(ranks):
    for rank in ranks:
        assert rank["counts"]["gradients"] == 100
        assert 1 <= rank["counts"]["collectives"] <= 3


def test_tensors_without_elements_keep_their_shapes(ranks):
    for rank in ranks:
        assert rank["empty"] == [[0], [2, 0]]


def test_errors_name_the_tensor(ranks):
    disagree = ["InvalidArgumentError", "the ranks disagree on 'tensor 1 (errors"]
    integers = ["InvalidArgumentError", "'tensor 1 (errors)' is int32"]
    expected = {
        "shape": disagree,
        "shape in a function": disagree,
        "integers": integers,
        "integers in a function": integers,
        "sparse": ["TypeError", "'tensor 0' of the average 'errors' is sparse"],
        "names": ["ValueError", "'errors' needs one name for each tensor; tensors: 1, names: 0"],
        "weight": ["InvalidArgumentError", "weight of 'tensor 0 (errors)'", "is -1"],
        "none": ["ok"],
        "no names": ["InvalidArgumentError", "an average op lacks its attributes"],
        "two names": ["InvalidArgumentError", "has 2 names for 1 tensors"],
        "two weights": ["InvalidArgumentError", "an average is not a float32 scalar"],
        "no indices": ["InvalidArgumentError", "an average op lacks its attributes"],
        "good": ["ok"],
    }
    for rank in ranks:
        assert rank["errors"].keys() == expected.keys()
        for case, words in expected.items():
            for word in words:
                assert word in rank["errors"][case], case


OFF = "averaging is off (TF_MPI_ENABLE)"
NO_OP = "reduce_op is out of range"
NO_ROOM = "no memory for the rows of all ranks"
ON = {
    "allreduce": "ok",
    "no reduce_op": NO_OP,
    "strings": "'strings' has no value, or a dtype that is not supported between ranks",
    "device": "'ResourceApplyGradientDescent' averages gradients over ranks, but is placed on "
    "XLA_CPU, which this release does not support. Place it on the CPU with tf.device('CPU:0'), or "
    "run with TF_MPI_ENABLE=0",
}


@pytest.mark.parametrize(
    ("np", "enable", "expected"),
    [
        (2, "1", [ON | {"rows": "ok"}, ON | {"rows": NO_ROOM}]),
        (0, "0", [{"allreduce": OFF, "no reduce_op": NO_OP, "strings": OFF, "device": "ok"}]),
    ],
    ids=["on", "off"],
)
def test_ops_that_cannot_run_say_why(launch, scripts, np, enable, expected):
    env = {"TF_XLA_FLAGS": "--tf_xla_enable_xla_devices", "TF_MPI_ENABLE": enable}
    run = launch(scripts / "average.py", np=np, args=["refused"], env=env).check()
    for rank, cases in zip(run.results, expected, strict=True):
        for case, words in cases.items():
            assert words in rank[case], rank[case]


def test_a_cancelled_average_counts_on_no_rank(ranks):
    errors = ranks[0]["cancelled"]["errors"]
    assert [error.partition(":")[0] for error in errors] == ["DeadlineExceededError"] * 2
    for rank in ranks:
        assert rank["cancelled"]["gathered"] == list(range(len(ranks)))
        for number, value in enumerate(rank["cancelled"]["after"], start=1):
            np.testing.assert_allclose(decode(value), number * mean(len(ranks)), rtol=1e-6)


@pytest.mark.full
def test_a_saved_average_is_an_identity_in_stock_tensorflow(
    ranks, launch, scripts, directory, stock_python
):
    command = [stock_python, scripts / "average.py", "load", directory / "model"]
    run = launch(command, np=0).check()
    for number, value in enumerate(run.results[0]["saved"], start=1):
        np.testing.assert_array_equal(decode(value), number * tensor(5))


def test_equal_data_on_all_ranks_is_a_warning(launch, scripts):
    """Not pooled, because the coordinator compares only the first gradients of a process."""
    run = launch(scripts / "average.py", args=["same"]).check()
    assert [text.count("had the same samples") for text in run.stderr] == [1, 0]


@pytest.mark.full
def test_control_without_the_mark_nothing_is_averaged(launch, scripts, tmp_path):
    """An IdentityN without its mark returns each rank's own tensor."""
    args, broken = ["values", tmp_path / "model"], {"TEST_BROKEN": "1"}
    for rank, values in enumerate(launch(scripts / "average.py", args=args, env=broken).results):
        value = decode(values["means"]["of_a_session"][0])
        np.testing.assert_array_equal(value, tensor(rank))
