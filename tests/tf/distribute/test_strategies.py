"""tf.distribute's strategies: ranks share the work of one process and follow its trajectory."""

from __future__ import annotations

import types

import pytest
from compare import assert_same, distance
from tensorflow.mpi._src.distribute import one_rank, strategies

from reference import reference
from tiers import full


@pytest.mark.parametrize(
    ("case", "ranks"),
    [("quick", 2), full("quick", 3), full("keras", 2), full("workers", 2), full("tf_keras", 2)],
)
def test_ranks_equal_one_process(launch, scripts, case, ranks):
    run = launch(scripts / "strategies.py", np=ranks, args=[case], timeout=240, pooled=True).check()
    (one,) = reference(scripts / "strategies.py", args=[case])
    told = {"refused", "chief", "rows"}
    assert_same(run.results, *run.results[0].keys() - told)
    for name in one.keys() - told:
        ours, theirs = run.results[0][name], one[name]
        if not isinstance(theirs, list):
            assert ours == theirs, name
            continue
        assert len(ours) == len(theirs)
        assert max(map(distance, ours, theirs)) < 1e-5, name
    if case == "quick":
        assert all("need no strategy" in printed["refused"] for printed in run.results)
        assert "need no strategy" not in one["refused"]
        assert one["rows"] == [16, 2]
        # A part of each batch; a stand-in if it is empty.
        for rank, printed in enumerate(run.results):
            assert printed["rows"] == [(rank + 1) * 16 // ranks - rank * 16 // ranks, 1]
    if case == "workers":
        assert [printed["chief"] for printed in run.results] == [True, False]


@pytest.mark.full
def test_a_loop_over_parts_equals_one_process(launch, scripts):
    """Batches of 8 and a last one of 4: some ranks have one sample more than others."""
    env = {"TF_MPI_SHARD": "dataset"}
    run = launch(scripts / "strategies.py", np=3, args=["loop"], env=env, timeout=240).check()
    (one,) = reference(scripts / "strategies.py", args=["loop"])
    assert_same(run.results, "weights")
    assert max(map(distance, run.results[0]["weights"], one["weights"])) < 1e-5


@pytest.mark.parametrize(
    ("named", "gpu", "used"),
    [
        (None, True, "/gpu:0"),
        (None, False, "/cpu:0"),
        (["GPU:1", "GPU:0"], True, "/gpu:0"),
        (["/device:GPU:1"], False, "/cpu:0"),
        (["/cpu:0"], True, "/cpu:0"),
        (["/job:worker/task:1/device:gpu:0"], True, "/gpu:0"),
    ],
)
def test_a_strategy_uses_the_ranks_gpu(named: list[str] | None, gpu: bool, used: str) -> None:
    """Needs no GPU. Without this, a strategy would train on the CPU although there is a GPU."""
    assert strategies.device(named, lambda: gpu) == used


def test_values_of_several_replicas_of_a_rank_are_refused():
    strategy = types.SimpleNamespace(_replicas=2)
    words = "gives each replica its own value, but a rank computes all 2 replicas' parts as one"
    with pytest.raises(NotImplementedError, match=words):
        one_rank.OneRank._experimental_distribute_values_from_function(strategy, lambda context: 0)
