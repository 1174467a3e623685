"""Predictions are for the rows that the script passed; differences between ranks are noticed."""

from __future__ import annotations

import pytest

from tiers import full


@pytest.mark.parametrize("kind", ["keras", full("tf_keras")])
def test_each_rank_predicts_its_own_rows(launch, scripts, kind):
    run = launch(scripts / "own_rows.py", np=2, args=[kind], pooled=True).check()
    for rank in run.results:
        assert set(rank["predicted"]["right"].values()) == {True}, rank["predicted"]["right"]
        assert rank["predicted"]["yielded"] == 5
        assert rank["predicted"]["asked"] == [5, 5]
        assert rank["noted"]["all"] == 12
        assert rank["counted"] == 19
        # As in one process: one batch ahead, and two in tf_keras.
        assert rank["asked for"] == ([4, 7, 11] if kind == "keras" else [5, 9, 13])
    first, second = (rank["noted"] for rank in run.results)
    assert first["loss"] == second["loss"] and first["labels"] == second["labels"]
    assert first["loss of rank 0's"] == second["loss of rank 0's"]
    assert run.stderr[0].count("each rank predicts all of its own") == 1
    assert run.stderr[0].count("input does not get faster with more ranks") == 1
    assert run.stderr[1].count("this rank's Python code yields different data than rank 0's") == 1


def test_contents_of_datasets_are_compared(launch, scripts):
    run = launch(scripts / "described.py", np=2, pooled=True).check()
    first, second = run.results
    assert first["first"] == second["first"] and first["second"] == second["second"]
    assert first["again"] == second["again"]
    assert first["specs"] == second["specs"] and all(first["specs"])
    for name, one in first["first"].items():
        assert one is not None and one != first["second"][name], name
    for name, one in first["again"].items():
        assert one is not None, name
