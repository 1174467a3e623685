"""One random state: unseeded draws are equal on all ranks, and each sample gets its own numbers."""

from __future__ import annotations

import functools
import random
import time

import numpy as np
import pytest

from extras import load
from installed import is_before
from tiers import full

APART = {0, 1, 2, 3, 4, 8, 11, 12}  # indices of the draws of steps.py that are per sample


@pytest.fixture(scope="module")
def drawn(launch, scripts):
    return launch(scripts / "draws.py", np=2).check().results


def test_all_ranks_draw_the_same(drawn):
    first, second = drawn
    assert first["host"] == second["host"]
    assert first["tensorflow"] == second["tensorflow"]


def test_no_number_is_drawn_twice(drawn):
    for kind in ("host", "tensorflow"):
        for name, value in drawn[0][kind].items():
            if isinstance(value, list):
                assert len({str(part) for part in value}) == len(value), name


@pytest.mark.full
def test_another_run_draws_other_numbers(launch, scripts, drawn):
    another = launch(scripts / "draws.py", np=2).check().results
    for kind in ("host", "tensorflow"):
        first, second = (run[0][kind] for run in (drawn, another))
        same = {name for name in first if first[name] == second[name]}
        assert same <= {"a set"}


def test_names_and_secrets_differ_by_rank(drawn):
    first, second = drawn
    assert first["own"]["name"] != second["own"]["name"]
    assert first["own"]["bytes"] != second["own"]["bytes"]


def test_generators_seeded_before_the_import_continue(launch, scripts):
    # Not pooled, because the pool has already imported TensorFlow.
    (alone,) = launch(scripts / "seeded.py", np=0).check().results
    run = launch(scripts / "seeded.py", np=2).check()
    for rank in run.results:
        assert [rank["before"], rank["after"]] == [alone["before"], alone["after"]]
        assert len({str(child) for child in rank["children"]}) == 2, "children draw their own"


@pytest.mark.parametrize("which", ["python", "numpy"])
def test_the_clock_and_no_seed_do_not_count_as_the_scripts_seed(which, monkeypatch):
    host = load("tensorflow.mpi._src.random.host")
    seed = host.noted(np.random.seed)
    if which == "python":
        state = random.Random()
        monkeypatch.setattr(host.random, "_inst", state)
        seed = functools.partial(host._seeded, state)
    for no_seed in ((), (None,), (int(time.time()),)):
        seed(*no_seed)
        assert not host.has_seeded(which)
        seed(42)
        assert host.has_seeded(which)
        seed(*no_seed)
        assert not host.has_seeded(which)
    assert not host.entropy.is_clock(1 << 2048), "larger than a float"


@pytest.mark.parametrize("kind", ["keras", full("tf_keras")])
def test_a_step_draws_its_rows_of_one_processs_draws(launch, scripts, kind):
    (alone,) = launch(scripts / "steps.py", np=0, args=[kind], pooled=True).check().results
    run = launch(scripts / "steps.py", np=2, args=[kind], pooled=True).check()
    first, second = run.results
    for place, (one, mine, theirs) in enumerate(
        zip(alone["compiled"], first["compiled"], second["compiled"])
    ):
        assert any(mine) and (mine != theirs) == (place < 4), (place, mine, theirs)
        # Without a seed XLA's draws are the same in each job of TensorFlow 2.20 and 2.21; those of
        # TensorFlow's kernels never are.
        assert one == mine or is_before("2.20") or not is_before("2.22"), (place, one, mine)
    for case in ("even", "uneven", "seeded"):
        assert len(first[case]) == len(second[case]) == 2
        for one, mine, theirs in zip(alone[case], first[case], second[case]):
            for place, (whole, a, b) in enumerate(zip(one, mine, theirs)):
                rows = place in APART
                assert a[:1] != b[:1] if rows else a == b, (case, place, a, b)
                if case == "seeded":
                    assert whole == (a + b if rows else a), (place, whole, a, b)


@pytest.mark.full
def test_with_shard_off_each_rank_draws_differently(launch, scripts):
    run = launch(scripts / "draws.py", np=2, env={"TF_MPI_SHARD": "off"}).check()
    first, second = run.results
    for kind in ("host", "tensorflow"):
        assert not [name for name in first[kind] if first[kind][name] == second[kind][name]]


@pytest.mark.full
def test_with_shard_off_a_models_generators_differ_by_rank(launch, scripts):
    run = launch(scripts / "steps.py", np=2, args=["keras"], env={"TF_MPI_SHARD": "off"}).check()
    first, second = run.results
    held = slice(9, 13)
    for mine, theirs in zip(first["seeded"], second["seeded"]):
        assert all(a != b for a, b in zip(mine[held], theirs[held]))
