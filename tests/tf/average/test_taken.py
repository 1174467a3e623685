"""Gradients that scripts clip or apply themselves: N ranks against one process."""

from __future__ import annotations

import pytest
from compare import assert_close, assert_same

from reference import reference
from tiers import full


@pytest.mark.parametrize("size, args", [(2, ["quick"]), full(2, []), full(3, [])], ids=str)
def test_gradients_that_scripts_use_equal_one_process(launch, scripts, size, args):
    (alone,) = reference(scripts / "taken.py", args=args)
    ranks = (
        launch(scripts / "taken.py", np=size, args=args, timeout=240, pooled=True).check().results
    )
    assert_same(ranks)
    for case, weights in alone.items():
        assert_close(ranks[-1][case], weights, 1e-5)


OWN_UPDATES = [
    "adversarial",
    "idle",
    "eager",
    "accumulated",
    "assigned_in_a_function",
    "own_noise",
]


@pytest.mark.parametrize("case", [*OWN_UPDATES[:2], *map(full, OWN_UPDATES[2:])])
def test_different_updates_by_rank_are_an_error_after_the_first_step(launch, scripts, case):
    """Not pooled, because only the first updates of a process are compared."""
    run = launch(scripts / "own_updates.py", np=2, args=[case]).check()
    for rank in run.results:
        assert "after the first step" in rank["outcome"]
        assert "tf.mpi.allreduce" in rank["outcome"]


@pytest.mark.full
@pytest.mark.parametrize("case", OWN_UPDATES)
def test_equal_updates_on_all_ranks_are_no_error(launch, scripts, case):
    run = launch(scripts / "own_updates.py", np=2, args=[case, "same"]).check()
    assert [rank["outcome"] for rank in run.results] == ["alike"] * 2
    assert not any("have trained" in text for text in run.stderr)
