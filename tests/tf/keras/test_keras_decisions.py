"""In fit and evaluate all ranks have the same values and make the same decisions as one process."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from compare import decode

from launch import LaunchResult
from reference import reference
from tiers import full

SCRIPT = "keras_decisions.py"
OF_PART = "normalizes by the moments of each rank's part of the batch"


@pytest.fixture(scope="module")
def alone(launch, scripts) -> dict[str, Any]:
    """The output of one plain process."""
    return reference(scripts / SCRIPT)[0]


@pytest.fixture(scope="module", params=[2, full(3)])
def run(request, launch, scripts) -> LaunchResult:
    return launch(scripts / SCRIPT, np=request.param, timeout=200, pooled=True).check()


@pytest.fixture
def ranks(run) -> list[dict[str, Any]]:
    """The output of every rank."""
    return run.results


def far(ours: Any, theirs: Any) -> float:
    pairs = zip(ours, theirs, strict=True)
    return max(float(np.abs(decode(a) - decode(b)).max()) for a, b in pairs)


@pytest.mark.parametrize("case", ["metrics", "own logs"])
def test_values_cover_all_ranks_data(alone, ranks, case):
    for rank in ranks:
        assert rank[case] == ranks[0][case]
    ours, theirs = ranks[0][case]["numbers"], alone[case]["numbers"]
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert np.allclose(ours[name], value, rtol=1e-5), name


def test_a_rank_without_samples_counts_none_after_having_some(ranks):
    for rank in ranks:
        assert rank["retraced"]["counted"] == 90


def test_callbacks_decide_the_same_on_all_ranks(alone, ranks):
    for rank in ranks:
        assert rank["callbacks"] == ranks[0]["callbacks"]
        assert rank["callbacks"]["epochs"] == alone["callbacks"]["epochs"] < 40
        assert rank["callbacks"]["rates"] == alone["callbacks"]["rates"]
    assert min(alone["callbacks"]["rates"]) < 3
    assert far(ranks[0]["callbacks"]["weights"], alone["callbacks"]["weights"]) < 1e-4


@pytest.mark.parametrize("case", ["stop", "stop by signal", "stop at begin", "nan"])
def test_a_stop_on_one_rank_stops_all(alone, ranks, case):
    for rank in ranks:
        assert rank[case] == alone[case]


def test_moments_are_those_of_the_whole_batch(alone, run):
    for rank in run.results:
        for case, arrays in (("batch norm", "moving"), ("norm in a loop", "weights")):
            assert rank[case] == run.results[0][case]
            assert far(rank[case][arrays], alone[case][arrays]) < 1e-5
    assert OF_PART not in "".join(run.stderr)


def test_train_on_batch_trains_on_its_input(alone, ranks):
    for rank in ranks:
        assert rank["on batch"] == ranks[0]["on batch"]
    assert far(ranks[0]["on batch"]["weights"], alone["on batch"]["weights"]) < 1e-5


def test_generators_advance_equally(alone, ranks):
    """Masks differ by rank: tests/tf/random/test_draws.py."""
    for rank in ranks:
        assert rank["dropout"]["state"] == alone["dropout"]["state"]


def test_no_retracing_and_a_single_average(alone, ranks):
    for rank in ranks:
        # One trace is the inspection of the step, in a graph that never runs.
        assert rank["graph"]["traces"] == alone["graph"]["traces"] + 1
        # For tf.distribute, Keras joins all gradients in an IdentityN with an Identity for each, so
        # no variable would be updated before the last average has arrived. The average replaces it.
        stock, ours = (Counter(types["graph"]["types"]) for types in (alone, rank))
        assert stock - ours == {"Identity": rank["graph"]["variables"]}
        assert ours - stock == {}


@pytest.mark.full
def test_moments_may_be_computed_per_rank(alone, launch, scripts):
    """Moving averages are then the mean of the ranks', or diverge; rank 0 says so."""
    args = ["batch norm", "norm in a loop"]
    run = launch(scripts / SCRIPT, np=2, args=args, env={"TF_MPI_SYNC_BATCHNORM": "0"}).check()
    mean, variance = (decode(array) for array in run.results[0]["batch norm"]["moving"])
    expected, spread = (decode(array) for array in alone["batch norm"]["moving"])
    np.testing.assert_allclose(mean, expected, atol=1e-6)  # parts have equal sizes: a mean of means
    assert (variance < spread).all()  # the variance within parts of a batch is smaller
    assert run.results[0]["norm in a loop"] != run.results[1]["norm in a loop"]
    assert [text.count(OF_PART) for text in run.stderr] == [2, 0]
    assert run.stderr[0].count("moving averages drift apart") == 1


@pytest.mark.parametrize(
    "case, words",
    [
        full(
            "unreached",
            [
                "fit() of model",
                "with optimizer Unreached changed the weights in a step that averaged no gradient",
                "apply or apply_gradients, or average the gradients with tf.mpi.allreduce",
            ],
        ),
        (
            "tampered",
            [
                "weight 'kernel' differs between ranks 0 and 1",
                "on one rank only",
                "broadcast_variables",
            ],
        ),
        full("poisoned", ["weight 'kernel' is NaN on rank 0 where it is a number on rank 1"]),
    ],
)
def test_programs_that_would_train_different_models_stop(launch, scripts, case, words):
    run = launch(scripts / SCRIPT, np=2, args=[case], timeout=60)
    assert run.returncode != 0
    for word in words:
        assert word in run.stderr[0] + run.stderr[1], run.report()
