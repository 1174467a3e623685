"""fit, evaluate and predict as a first call, and of what cannot be split by samples."""

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
    """What one plain process printed."""
    return reference(scripts / SCRIPT, args=[package])[0]


@pytest.fixture(scope="module", params=[2, full(3)])
def run(request, launch, scripts, package) -> Any:
    return launch(scripts / SCRIPT, np=request.param, args=[package], timeout=200).check()


@pytest.mark.parametrize("case", ["evaluated", "predicted"])
def test_a_model_that_its_first_use_builds_is_one_model(alone, run, case):
    """Each rank has a seed of its own: rank 0's weights count."""
    for rank in run.results:
        values, weights = rank[case]
        np.testing.assert_allclose(decode(values), decode(alone[case][0]), rtol=1e-5)
        for ours, theirs in zip(weights, alone[case][1], strict=True):
            np.testing.assert_array_equal(decode(ours), decode(theirs))


def test_what_a_trace_builds_stays_built(alone, run):
    for rank in run.results:
        np.testing.assert_allclose(rank["built"][0], alone["built"][0], rtol=1e-6)
        for ours, theirs in zip(rank["built"][1], alone["built"][1], strict=True):
            np.testing.assert_allclose(decode(ours), decode(theirs), atol=1e-6)


@pytest.mark.parametrize("case", ["pooled", "gathered", "gathered late", "graph", "fixed"])
def test_what_nobody_can_share_is_whole_on_every_rank(alone, run, case):
    for rank in run.results:
        np.testing.assert_allclose(rank[case][0], alone[case][0], rtol=1e-6)
        for ours, theirs in zip(rank[case][1], alone[case][1], strict=True):
            np.testing.assert_allclose(decode(ours), decode(theirs), atol=1e-6)
    said = [text.count("every rank computes whole batches") for text in run.stderr]
    assert said[0] and not any(said[1:])


def test_a_first_dimension_of_no_samples_is_left_whole(alone, run):
    """Anchors and their pairs, stacked: no rank can take a part of two."""
    for rank in run.results:
        assert rank["pairs"] == alone["pairs"] == "none"


def test_lengths_that_only_the_data_tell(run):
    for rank in run.results:
        assert "different first dimensions" in rank["lengths seen late"]
        assert "Set TF_MPI_SHARD=off" in rank["lengths seen late"]


def test_other_errors_are_left_alone(alone, run):
    for rank in run.results:
        assert rank["other error"].splitlines()[-1] == alone["other error"].splitlines()[-1]


def test_callbacks_that_the_script_drives_meet_nobody(run):
    for rank in run.results:
        assert rank["driven"] is True


def test_logs_of_a_batch_are_exchanged_only_for_who_reads_them(run):
    """A callback of batches may stop one, or look: after each of five batches all ask."""
    for rank in run.results:
        plain, silent, reader = rank["exchanges"]
        assert silent == plain
        assert reader - silent == 6  # and at the first look, which nobody foresaw


def test_a_loss_of_ragged_targets_is_equal(alone, run, package):
    if package == "tf_keras":  # Keras 3 takes none
        for rank in run.results:
            assert rank["ragged"] == pytest.approx(alone["ragged"], rel=1e-5)


def test_calls_leave_nothing_behind(alone, run):
    """A graph would be three hundred objects."""
    for rank in run.results:
        assert rank["left behind"] < alone["left behind"] + 20
