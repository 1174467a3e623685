"""compat.v1 optimizers: gradients are averaged once, where computed, before any clipping."""

from __future__ import annotations

import pytest
from compare import assert_close, assert_same

from extras import needs
from reference import reference
from tiers import full

STEPS = 12
PLAIN = [
    f"{how} {mode}"
    for how in ("clip", "minimize", "looked at", "raw", "assigns", "assigns clip")
    for mode in ("ref", "resource", "function", "eager")
    if (how, mode) != ("assigns clip", "eager")
] + ["clip compiled", "by hand ref", "by hand resource"]
SCALED = [
    "scaled resource",
    "scaled function",
    "scaled clip function",
    "scaled old control flow",
    "scaled eager",
    "scaled clip eager",
]


@pytest.fixture(scope="module")
def alone(launch, scripts):
    return reference(scripts / "compat_v1.py")[0]


@pytest.fixture(scope="module", params=[2, full(3)])
def ranks(request, launch, scripts):
    return (
        launch(scripts / "compat_v1.py", np=request.param, timeout=180, pooled=True).check().results
    )


@pytest.mark.parametrize("case", PLAIN)
def test_equals_one_process(ranks, alone, case):
    values = [rank["cases"][case]["values"] for rank in ranks]
    assert_same(values)
    assert_close(values[0], alone["cases"][case]["values"], 1e-12)
    assert {rank["cases"][case]["steps"] for rank in ranks} == {STEPS}


@pytest.mark.parametrize("case", SCALED)
def test_inf_on_one_rank_skips_the_step_on_all(ranks, alone, case):
    assert alone["cases"][case]["steps"] == STEPS - 1
    values = [rank["cases"][case]["values"] for rank in ranks]
    assert_same(values)
    assert_close(values[0], alone["cases"][case]["values"], 1e-5)
    assert {rank["cases"][case]["steps"] for rank in ranks} == {STEPS - 1}


def test_every_case_was_run(alone):
    assert set(alone["cases"]) == {*PLAIN, *SCALED}


def test_each_gradient_is_averaged_once(ranks):
    """Three per step, except for modified gradients in eager code, whose origin is unknown."""
    for rank in ranks:
        for case, values in rank["cases"].items():
            expected = 6 if case in ("clip eager", "scaled eager", "scaled clip eager") else 3
            counts = {key: values["counts"][key] for key in ("gradients", "completed")}
            assert counts == {"gradients": expected, "completed": expected}, case


@needs("synchronous_updates")
def test_averages_are_applied_by_plain_kernels(ranks):
    """In graphs, with everything synchronized, the executor runs the kernels at once."""
    for rank in ranks:
        for how in ("clip", "minimize", "raw"):
            for mode in ("ref", "resource", "function"):
                assert rank["cases"][f"{how} {mode}"]["counts"]["updated"] == 3, (how, mode)


def test_sparse_gradients_stay_sparse(ranks, alone):
    assert {run["sparse"] for run in [*ranks, alone]} == {"ok"}


def test_the_gradient_of_an_eager_tensor_is_averaged(ranks):
    assert [rank["tensor"] for rank in ranks] == [[2.0 * len(ranks)]] * len(ranks)


@pytest.mark.full
def test_control_of_ranks_without_averaging(launch, scripts, alone):
    off = {"TF_MPI_ENABLE": "0", "TEST_UNSYNCHRONISED": "1"}
    results = launch(scripts / "compat_v1.py", env=off).check().results
    for case in PLAIN:
        values = [rank["cases"][case]["values"] for rank in results]
        with pytest.raises(AssertionError, match="differs from rank 0"):
            assert_same(values)
        with pytest.raises(AssertionError, match="differences above"):
            assert_close(values[1], alone["cases"][case]["values"], 1e-5)
