"""Each rank's part of the data: together, step by step, the parts form one process's batches."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from compare import assert_close, assert_same

from reference import reference
from tiers import full

SAMPLES = 23
BATCH = 5
BOTH = ["keras", "tf_keras"]


class Runs(NamedTuple):
    """The output of ranks and of one process."""

    ranks: list[dict[str, Any]]
    alone: dict[str, Any]
    said: list[str]


@pytest.fixture(
    scope="module",
    params=["keras on 2 ranks", full("keras on 3 ranks"), full("tf_keras on 2 ranks")],
)
def runs(launch, scripts, request) -> Runs:
    framework, size = request.param.split()[0], int(request.param.split()[2])
    script, args = scripts / "shards.py", [framework]
    run = launch(script, np=size, args=args, timeout=240, pooled=True).check()
    return Runs(run.results, reference(script, args=args)[0], run.stderr)


def assert_shares(ranks: list[Any], alone: Any) -> None:
    """Of each batch's B samples, rank r has those from r * B // size, with equal weights
    everywhere.

    A rank without samples has the next one after the earlier ranks' as a stand-in.
    """
    size = len(ranks)
    assert [len(steps) for steps in ranks] == [len(alone)] * size
    for step, (batch, *_) in enumerate(alone):
        for rank, steps in enumerate(ranks):
            numbers, weight, place = steps[step]
            first, end = rank * len(batch) // size, (rank + 1) * len(batch) // size
            assert weight == pytest.approx((end - first) * size / len(batch))
            assert numbers == batch[first : max(end, first + 1)], (step, rank)
            assert place == [first, len(batch)]


def test_shares_form_the_batches_of_one_process(runs):
    for name, alone in runs.alone["seen"].items():
        assert_shares([rank["seen"][name] for rank in runs.ranks], alone)


def test_a_compiled_step_knows_the_positions_of_its_samples(runs):
    for rank in runs.ranks:
        for size, (steps, traces) in zip((BATCH, BATCH, 6, 1), rank["compiled"], strict=True):
            assert traces == 1
            for step, (numbers, places, whole) in enumerate(steps):
                assert whole == min(size, SAMPLES - step * size)
                assert numbers == [step * size + place for place in places]


def test_unseeded_shuffles_are_partitions(runs):
    for name in runs.alone["unseeded"]:
        ranks = [rank["unseeded"][name] for rank in runs.ranks]
        for steps in zip(*ranks, strict=True):
            counted = [len(numbers) for numbers, weight, _ in steps if weight > 0]
            assert sum(counted) in (BATCH, SAMPLES % BATCH)
        numbers = [n for steps in ranks for seen, weight, _ in steps if weight > 0 for n in seen]
        assert sorted(numbers) == list(range(SAMPLES)), name
        order = [n for seen, *_ in ranks[0] for n in seen]
        if name != "py_dataset":  # a shuffle of five batches sometimes keeps their order
            assert order != sorted(order), f"{name}: not shuffled"


def test_training_equals_one_process(runs):
    for name, alone in runs.alone["trained"].items():
        ranks = [rank["trained"][name] for rank in runs.ranks]
        assert_same([rank["values"] for rank in ranks])
        assert_close(ranks[1]["values"], alone["values"], 1e-5)


def test_no_more_traces_than_in_one_process(runs):
    for name, alone in runs.alone["trained"].items():
        for rank in runs.ranks:
            if name != "sample_weight":  # every step runs in Python there
                assert rank["trained"][name]["traces"] <= alone["traces"], name


def test_predict_returns_all_rows_in_order(runs):
    for name, alone in runs.alone["predicted"].items():
        for rank in runs.ranks:
            assert_close(rank["predicted"][name], alone, 1e-6)
    assert ["each rank predicts once more" in text for text in runs.said][:2] == [True, False]
    assert "predict: the samples may differ by rank, because Python code" in runs.said[0]
    assert "does all the work on them ('by_python'), and only the model's" in runs.said[0]
    assert "scan()" not in runs.said[0]


@pytest.mark.parametrize("framework", ["keras", full("tf_keras")])
@pytest.mark.parametrize("mode", ["own", full("off"), full("per-rank")])
def test_batches_of_unequal_ranks_equal_one_process(launch, scripts, mode, framework):
    """Unequal parts of the script's own; and per-rank batches with an adapted learning rate."""
    settings = {
        "own": {},
        "off": {"TF_MPI_SHARD": "off"},
        "per-rank": {"TF_MPI_BATCH": "per-rank:linear"},
    }
    script, args = scripts / "shards_own.py", [mode, framework]
    ranks = launch(script, np=2, args=args, env=settings[mode], timeout=120).check().results
    places = [rank.pop("places") for rank in ranks]
    if mode == "per-rank":  # rank 1 has no third batch: a stand-in for four samples
        assert places == [[[0, 4, 8], [0, 4, 4]], [[4, 4, 8], [0, 4, 4]]]
    else:  # own batches; rank 1 has one more, for which rank 0 has a stand-in
        sizes = [[10, 10, 5, 1], [3, 3, 3, 3]]
        assert places == [[[0, size, size] for size in mine] for mine in sizes]
    alone = reference(script, args=args)[0]
    for name in alone:
        assert_same([rank[name] for rank in ranks])
        assert_close(ranks[1][name], alone[name], 1e-5)


@pytest.mark.full
def test_undeclared_parts_are_reported(launch, scripts):
    run = launch(scripts / "shards_own.py", np=2, args=["unsaid", "keras"], timeout=120)
    assert run.returncode != 0
    words = ("batch_size of fit() is 10 on rank 0 and 3 on rank 1", "call tf.mpi.own_data()")
    assert any(all(word in text for word in words) for text in run.stderr)


@pytest.mark.parametrize(
    "mode, apis", [("dataset", ["keras"]), *(full(mode, BOTH) for mode in ("auto", "dataset"))]
)
def test_custom_loops_see_their_parts(launch, scripts, mode, apis):
    env = {"TF_MPI_SHARD": mode}
    run = launch(scripts / "shards_loops.py", np=2, args=apis, env=env, timeout=120)
    said = "Keras metrics cover all ranks once the loop"
    assert [text.count(said) for text in run.stderr] == [1, 0]
    ranks = run.check().results
    early = "step_s" if mode == "auto" else "broken"
    for part in (f"'{early}' is read before", "'largest' has state other than sums"):
        assert [text.count(f"the metric {part}") for text in run.stderr] == [1, 0], run.report()
    assert [text.count("the metric '") for text in run.stderr] == [2, 0]
    for rank in ranks:
        rank.pop("largest")
        assert rank.pop("steps") == [0] * len(apis)
        assert (rank.pop("kept"), rank.pop("reduced")) == (5, sum(range(SAMPLES)))
        assert rank.pop("functions") == [[559, 559, 11.5, 552, 835, 276]] * len(apis)
        assert rank.pop("own metrics") == [[276, 6, 1, 6, 11.5, 69, 276 + 7]] * len(apis)
        for sums in rank.pop("undivided", []):
            assert sums == [276, 276, 276, 2 * 276, 276]
        for framework in rank.pop("keras", []):
            assert {name for name, off in framework.items() if off > 1e-5} == set()
        assert rank.pop("metrics") == [[2 * sum(range(SAMPLES)), sum(range(SAMPLES))]] * len(apis)
    for name in ranks[0]:
        assert len({len(rank[name]) for rank in ranks}) == 1, f"{name}: unequal steps"
        seen = sorted(n for rank in ranks for step in rank[name] for n in step)
        if "elements" in name:  # the last ones are omitted, so that no rank waits
            assert len(seen) == len(set(seen)) == 22, name
        else:
            assert seen == list(range(SAMPLES)), name
