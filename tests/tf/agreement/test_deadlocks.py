"""Deadlocks between ranks are reported at once, unless there is one right way to continue."""

from __future__ import annotations

import sys

import pytest

from tiers import full


@pytest.fixture(scope="module")
def goes_on(launch, scripts, tmp_path_factory):
    """A run in which ranks sleep for longer than the deadlock delay, and take unequal steps."""
    args = ["goes_on", tmp_path_factory.mktemp("saved")]
    return launch(scripts / "deadlocks.py", args=args, timeout=150).check()


def test_a_sleeping_rank_is_not_a_deadlock(goes_on):
    ours, theirs = goes_on.results
    assert ours["weights"] == theirs["weights"]
    assert (ours["slow"], theirs["slow"]) == (-1.5, -1.5)


def test_a_thread_may_start_to_train_while_another_is_in_a_barrier(goes_on):
    assert [rank["thread"] for rank in goes_on.results] == [-1.5, -1.5]


def test_an_extra_batch_before_a_save_ends_well(goes_on):
    """Three steps of both ranks, by 1.5 each, and two of rank 0 alone, by 1 each."""
    for rank in goes_on.results:
        assert rank["save"]["saved"] == -6.5
        assert rank["save"]["seconds"] < 20  # otherwise it would be half an hour
    assert [rank["save"]["own"] for rank in goes_on.results] == [-6.5, -4.5]
    assert (
        "has no gradients to contribute; averages are now over the remaining 1 rank"
        in goes_on.stderr[0]
    )


def test_a_rank_that_missed_steps_may_not_train_on(goes_on):
    then = goes_on.results[1]["save"]["then"]
    assert "rank 1/2" in then and "tf.mpi.broadcast_variables" in then


def test_uneven_loops_meet_at_a_barrier_and_continue(goes_on):
    ours, theirs = (rank["barrier"] for rank in goes_on.results)
    assert (ours["own"], theirs["own"]) == (-4.5, -8.5)
    assert (ours["then"], theirs["then"]) == (-10.0, -10.0)


FIT = "in fit() of model 'm'"
ENDS = {
    "crossing": ["waits for rank 1 in allreduce 'first (", "waits for rank 0 in allreduce 'second"],
    "a variable more": ["rank 0 in allreduce 'more (", "rank 1 in allreduce 'weights ("],
    "fit or barrier": [f"rank 0, {FIT}", "rank 1 waits for rank 0 in barrier"],
    "evaluate on one": [f"rank 0, {FIT}, epoch 2, after 4 steps,", "rank 1, in evaluate() of mod"],
    "a sample": [f"'an error: {FIT[3:]} has met InvalidArgumentError: sample 13 : Tensor had Inf"],
    "evaluate in a loop": ["rank 0, in evaluate() of model 'm'", "allreduce 'weights"],
}


@pytest.mark.parametrize(
    "way",
    [
        "crossing",
        full("a variable more"),
        full("fit or barrier"),
        full("evaluate on one"),
        full("evaluate in a loop"),
        full("a sample"),
    ],
)
def test_a_deadlock_names_within_seconds_who_waits_for_whom(launch, scripts, way):
    run = launch(scripts / "deadlocks.py", args=[way], timeout=90)
    assert run.returncode != 0
    assert run.since(0) < 20  # most of which is the script's
    for text in run.stderr:
        assert "the ranks wait for one another, so none can continue" in text, run.report()
        for words in ENDS[way]:
            assert words in text, run.report()


@pytest.mark.full
def test_different_scripts_are_named(launch, tmp_path):
    """mpirun -np 1 python train.py : -np 1 python evaluate.py."""
    (tmp_path / "0.py").write_text("import tensorflow as tf\ntf.mpi.allreduce(1.0, name='one')\n")
    (tmp_path / "1.py").write_text("import tensorflow as tf\ntf.mpi.allreduce(1.0, name='two')\n")
    each = ["sh", "-c", 'exec "$0" "$1/$OMPI_COMM_WORLD_RANK.py"', sys.executable, tmp_path]
    run = launch(each, timeout=90)
    assert run.returncode != 0
    line = "the ranks run different scripts: rank 0 0.py, rank 1 1.py. All ranks must run the same"
    assert [line in text for text in run.stderr].count(True) >= 1
