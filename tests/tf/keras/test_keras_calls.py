"""fit, evaluate and predict as a first call, and on data that cannot be divided by samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compare import decode

from reference import reference
from tiers import full

SCRIPT = "keras_calls.py"
ERRORS = ("graph", "pairs", "lengths seen late", "other error")


@pytest.fixture(scope="module", params=["keras", full("tf_keras")])
def package(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def alone(launch, scripts, package) -> dict[str, Any]:
    """The output of one plain process."""
    return reference(scripts / SCRIPT, args=[package])[0]


@pytest.fixture(scope="module", params=[2, full(3)])
def run(request, launch, scripts, package) -> Any:
    return launch(
        scripts / SCRIPT, np=request.param, args=[package], timeout=200, pooled=True
    ).check()


@pytest.mark.parametrize("case", ["evaluated", "predicted"])
def test_a_model_built_by_its_first_use_is_the_same_on_all_ranks(alone, run, case):
    """Each rank has its own seed; rank 0's weights are used."""
    for rank in run.results:
        values, weights = rank[case]
        np.testing.assert_allclose(decode(values), decode(alone[case][0]), rtol=1e-5)
        for ours, theirs in zip(weights, alone[case][1], strict=True):
            np.testing.assert_array_equal(decode(ours), decode(theirs))


@pytest.mark.parametrize("case", ["built", "adversarial"])
def test_a_model_built_by_a_trace_stays_built(alone, run, case):
    for rank in run.results:
        np.testing.assert_allclose(rank[case][0], alone[case][0], rtol=1e-6)
        for ours, theirs in zip(rank[case][1], alone[case][1], strict=True):
            np.testing.assert_allclose(decode(ours), decode(theirs), atol=1e-6)


@pytest.mark.parametrize(
    "case", ["pooled", "gathered", "gathered late", "graph", "zipped", "fixed"]
)
def test_data_that_cannot_be_divided_is_whole_on_every_rank(alone, run, case):
    for rank in run.results:
        np.testing.assert_allclose(rank[case][0], alone[case][0], rtol=1e-6)
        for ours, theirs in zip(rank[case][1], alone[case][1], strict=True):
            np.testing.assert_allclose(decode(ours), decode(theirs), atol=1e-6)
    said = [text.count("every rank computes whole batches") for text in run.stderr]
    assert said[0] and not any(said[1:])


def test_a_first_dimension_without_samples_is_not_divided(alone, run):
    """Anchors and their pairs, stacked: no rank can take a part of the two."""
    for rank in run.results:
        assert rank["pairs"] == alone["pairs"] == "none"


def test_lengths_known_only_from_the_data_are_handled(run):
    for rank in run.results:
        assert "different first dimensions" in rank["lengths seen late"]
        assert "Set TF_MPI_SHARD=off" in rank["lengths seen late"]


def test_other_errors_are_not_explained(alone, run):
    for rank in run.results:
        assert rank["other error"].splitlines()[-1] == alone["other error"].splitlines()[-1]


def test_callbacks_driven_by_the_script_wait_for_no_rank(run):
    for rank in run.results:
        assert rank["driven"] is True


def test_logs_of_a_batch_are_exchanged_only_for_readers(run):
    """A callback for batches may stop one or read logs, so ranks exchange after each of 5
    batches."""
    for rank in run.results:
        plain, silent, reader = rank["exchanges"]
        assert silent == plain
        assert reader - silent == 6  # and for the first read, which nothing predicted


def test_a_loss_of_ragged_targets_is_equal(alone, run, package):
    if package == "tf_keras":  # Keras 3 does not support them
        for rank in run.results:
            assert rank["ragged"] == pytest.approx(alone["ragged"], rel=1e-5)


def test_each_rank_does_not_tune_steps_by_itself(run, package):
    """Otherwise ranks that make fewer calls of the train function wait for the others."""
    if package == "tf_keras":
        assert [rank["tuned"] for rank in run.results] == [3 * 5] * len(run.results)
        assert "tf_keras would choose steps_per_execution='auto' by the speed" in run.stderr[0]


def test_calls_leave_no_objects_behind(alone, run):
    """A leaked graph would be about three hundred objects."""
    for rank in run.results:
        assert rank["left behind"] < alone["left behind"] + 20
