"""compat.v1 optimizers: gradients are averaged once, where computed, before any clipping."""

from __future__ import annotations

import re

import pytest
from compare import assert_cases_close, assert_close, assert_same

from extras import load, needs
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


# What the quick tier trains: each way to get gradients, and each way to run.
QUICK = (
    *("clip ref", "clip function", "clip eager", "clip compiled", "minimize resource"),
    *("looked at function", "raw ref", "raw eager", "assigns resource", "assigns clip function"),
    *("by hand ref", "scaled resource", "scaled clip function", "scaled old control flow"),
    "scaled clip eager",
)


@pytest.fixture(
    scope="module", params=[(2, QUICK), full((2, ())), full((3, ()))], ids=["quick", "2", "3"]
)
def runs(request, launch, scripts):
    """The output of ranks and of one process."""
    size, cases = request.param
    script = scripts / "compat_v1.py"
    ranks = launch(script, np=size, args=cases, timeout=180, pooled=True).check().results
    (alone,) = reference(script, args=cases)
    assert set(alone["cases"]) == set(cases or (*PLAIN, *SCALED))
    return ranks, alone


@pytest.fixture(scope="module")
def ranks(runs):
    return runs[0]


@pytest.fixture(scope="module")
def alone(runs):
    return runs[1]


def values(run, cases):
    return {case: run["cases"][case]["values"] for case in cases if case in run["cases"]}


def steps(run, cases):
    return {run["cases"][case]["steps"] for case in cases if case in run["cases"]}


def test_equals_one_process(ranks, alone):
    assert_same([values(rank, PLAIN) for rank in ranks])
    assert_cases_close(values(ranks[0], PLAIN), values(alone, PLAIN), 1e-12)
    assert [steps(rank, PLAIN) for rank in ranks] == [{STEPS}] * len(ranks)


def test_inf_on_one_rank_skips_the_step_on_all(ranks, alone):
    assert_same([values(rank, SCALED) for rank in ranks])
    assert_cases_close(values(ranks[0], SCALED), values(alone, SCALED), 1e-5)
    assert [steps(run, SCALED) for run in (alone, *ranks)] == [{STEPS - 1}] * (len(ranks) + 1)


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
        applied = {
            case: found["counts"]["updated"]
            for case, found in rank["cases"].items()
            if re.fullmatch("(clip|minimize|raw) (ref|resource|function)", case)
        }
        assert set(applied.values()) == {3}, applied


def test_sparse_gradients_stay_sparse(ranks, alone):
    assert {run["sparse"] for run in [*ranks, alone]} == {"ok"}


def test_the_gradient_of_an_eager_tensor_is_averaged(ranks):
    assert [rank["tensor"] for rank in ranks] == [[2.0 * len(ranks)]] * len(ranks)


@pytest.mark.full
def test_control_of_ranks_without_averaging(launch, scripts):
    (alone,) = reference(scripts / "compat_v1.py")
    off = {"TF_MPI_ENABLE": "0", "TEST_UNSYNCHRONISED": "1"}
    results = launch(scripts / "compat_v1.py", env=off).check().results
    for case in PLAIN:
        found = [rank["cases"][case]["values"] for rank in results]
        with pytest.raises(AssertionError, match="differs from rank 0"):
            assert_same(found)
        with pytest.raises(AssertionError, match="differences above"):
            assert_close(found[1], alone["cases"][case]["values"], 1e-5)


def test_gradients_are_resolved_in_the_same_order_on_all_ranks(monkeypatch) -> None:
    """Resolving eager sparse gradients is collective; the script's order may differ by rank."""
    gradients = load("tensorflow.mpi._src.compat_v1.gradients")
    resolved: list[str] = []
    monkeypatch.setattr(gradients.group, "size", 2)
    monkeypatch.setattr(gradients, "_name", lambda _, variable: variable)
    monkeypatch.setattr(gradients, "_average", lambda _, given, *__: given)

    def resolve(gradient: str) -> tuple[str, bool]:
        resolved.append(gradient)
        return gradient, gradient != "grad 2"

    monkeypatch.setattr(gradients.script_gradients, "resolve", resolve)
    pending = [("grad 10", "layer_10", None), (None, "layer_3", None), ("grad 2", "layer_2", None)]
    assert gradients.average_applied(None, pending) == tuple(pending)
    assert resolved == ["grad 2", "grad 10"]
