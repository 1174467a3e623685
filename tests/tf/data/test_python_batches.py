"""Each of N ranks makes every N-th batch of a PyDataset; training equals one process."""

from __future__ import annotations

import numpy as np
import pytest
from compare import decode

from reference import reference
from tiers import full

MADE_BY_ALL = {"seeded draws", "a state", "an iterator", "an object", "a global variable"}
LENGTH = 7


@pytest.fixture(
    scope="module",
    params=["keras quick 2", *map(full, ("keras all 2", "tf_keras all 2", "keras all 3"))],
)
def runs(launch, scripts, request):
    *args, ranks = request.param.split()
    script = scripts / "python_batches.py"
    (alone,) = reference(script, args=args)
    run = launch(script, np=int(ranks), args=args, timeout=600, pooled=ranks == "2").check()
    return alone, run


def together(ranks, name):
    """By step, the rows of all ranks, in rank order."""
    steps = zip(*(rank[name]["seen"] for rank in ranks), strict=True)
    return [[row for rows in step for row in rows] for step in steps]


def test_batches_equal_those_of_one_process(runs):
    """In the same order, with the same seeded draws."""
    alone, run = runs
    for name, found in alone.items():
        if name == "steps":
            continue
        mine, theirs = together(run.results, name), found["seen"]
        if name in ("open draws", "draws in threads"):
            mine, theirs = ([[row[0] for row in step] for step in of] for of in (mine, theirs))
        if name == "draws in threads":  # draws between epochs also determine the order
            mine, theirs = (sorted(step[0] for step in of[-LENGTH:]) for of in (mine, theirs))
        assert mine == theirs, name
        for rank in run.results:
            assert rank[name]["epochs"] == found["epochs"], name


def test_each_rank_makes_its_share(runs):
    """Keras first inspects one or two batches; one more may be made and not used."""
    alone, run = runs
    size = len(run.results)
    for name, found in alone.items():
        for rank in run.results:
            if name in MADE_BY_ALL:
                assert rank[name]["calls"] >= len(found["seen"]), name
            elif name not in ("steps", "other orders", "one batch"):
                epochs = max(1, found["epochs"])
                share = -(-len(found["seen"]) // size) + epochs
                assert rank[name]["calls"] <= share + 3, (name, rank[name]["calls"], share)


def test_unseeded_draws_differ_between_batches(runs):
    _, run = runs
    for name in {"open draws", "draws in threads"} & run.results[0].keys():
        drawn = [row[1] for step in together(run.results, name) for row in step]
        assert len(set(drawn)) == len(drawn), name


def test_an_error_reaches_every_rank(runs):
    _, run = runs
    for number, place in enumerate((3, LENGTH - 1)):
        errors = [rank["failed"]["errors"][number] for rank in run.results]
        assert all(f"ValueError: batch {place} is bad" in error for error in errors)
        told = ["in __getitem__\n" in error for error in errors]
        assert told.count(True) == 1, "its traceback once"


def test_fit_evaluate_and_predict_equal_one_process(runs):
    alone, run = runs
    for rank in run.results:
        for value in ("history", "evaluated"):
            np.testing.assert_allclose(rank["steps"][value], alone["steps"][value], rtol=1e-5)
        predicted = decode(rank["steps"]["predicted"])
        np.testing.assert_allclose(predicted, decode(alone["steps"]["predicted"]), rtol=1e-5)


def test_batches_that_cannot_be_divided_are_reported(runs):
    _, run = runs
    said = {
        "seeded draws": "it draws from a seeded generator",
        "a state": "it changes its attribute 'seen'",
        "an iterator": "it changes its attribute 'numbers'",
        "an object": "it changes its attribute 'held'",
        "a global variable": "it changes the global variable 'seen'",
        "other orders": "differ between the ranks, so rank 0 makes all",
    }
    for name in said.keys() & run.results[0].keys():
        assert run.stderr[0].count(said[name]) == 1, name
