"""All ranks see the same order, iteration after iteration; a failure on one fails all."""

from __future__ import annotations

import pytest

FAILED = ("fit", "eager fit", "loop")
GENERATED = {"first of rank 1": "file 0 is gone", "generator of rank 1": "file 9 is gone"}


@pytest.fixture(scope="module")
def run(launch, scripts):
    return launch(scripts / "one_order.py", np=2, pooled=True).check()


@pytest.fixture(scope="module")
def ranks(run):
    return run.results


def test_an_undefined_order_is_the_same_on_all_ranks(ranks):
    first, second = (rank["open"] for rank in ranks)
    for name, found in first.items():
        assert found == second[name], name
        assert found["known"] is not None, f"rank 0 would send: {name}"
        if "shuffle" not in name:
            for seen in found["seen"]:
                by_inner = [[i for i in seen if i // 8 == k] for k in range(4)]
                assert by_inner == [sorted(mine) for mine in by_inner], name


def test_reading_ahead_does_not_change_the_next_order(ranks):
    first, second = (rank["cut short"] for rank in ranks)
    parts = [found.pop("of parts") for found in (first, second)]
    assert first == second
    orders = first["orders"]
    assert first["endless"] == first["cached"] == orders[:8]
    assert first["behind"] == [[0, 1, *order] for order in orders[1:8:2]], "each other iteration"
    assert first["whole"] == [orders[0] + orders[1], orders[2] + orders[3]]
    assert first["shared"] == orders[4], "repeat has iterated it twice, two times"
    assert first["buffered"] == orders[2], "a shuffle of all elements has read both passes"
    assert first["counted"] == [orders[1]] * 2, "reduce and save iterate it"
    for rank, part in enumerate(parts):
        assert part == [orders[2][rank::2], orders[3][rank::2]] * 2
    assert first["taken"] == [orders[8][:2], orders[9] + orders[10][:3], orders[11][:1]]


def test_a_parallel_map_draws_per_sample(ranks):
    first, second = (rank["drawn"] for rank in ranks)
    assert first == second
    assert first.pop("loop") == {"known": None}, "a key determines one draw, not a sequence"
    for name, found in first.items():
        assert found["known"] is not None, f"rank 0 would send: {name}"
        assert found["wall"] is None, f"not applied to own samples only: {name}"
        assert found["name"] == ("one_of_two" if name == "branch" else "<lambda>"), "for messages"
        numbers = [number for one in found["numbers"] for number in one]
        assert len(set(numbers)) > 12, f"{name} has 24 draws, different in each pass"


def test_a_cache_holds_one_pass_for_all_users(ranks):
    orders = ranks[0]["cut short"]["orders"]
    for rank, found in enumerate(rank["cached"] for rank in ranks):
        assert found["look"] == orders[0][:2]
        assert found["samples"] == [orders[1][rank::2]] * 2
        assert found["all samples"] == orders[1]
        assert found["batches"] == [orders[2][rank::2]] * 2
        assert found["all batches"] == orders[2]
        assert found["shuffled"] == orders[3]
        assert found["numbers"] == [found["all numbers"][rank::2]] * 2
        assert len(set(found["all numbers"])) == 8


def test_the_elements_of_a_random_map_are_not_divided(ranks):
    for rank, found in enumerate(rank["elements"] for rank in ranks):
        assert found == [[i] * 4 for i in range(rank, 8, 2)]


def test_two_views_of_a_sample_differ(ranks):
    first, second = (rank["views"] for rank in ranks)
    assert first == second
    assert all(one != other for one, other in first)


def test_pipelines_that_cannot_be_shared_are_reported_with_a_remedy(run):
    for what, remedy in {
        "draws random numbers sample by sample": "num_parallel_calls=tf.data.AUTOTUNE",
        "input does not get faster with more ranks": "use a keras.utils.PyDataset",
    }.items():
        assert [text.count(what) for text in run.stderr] == [1, 0]
        assert remedy in run.stderr[0]


@pytest.mark.parametrize("kind", [*FAILED, *GENERATED])
def test_a_failure_on_one_rank_fails_all(ranks, kind):
    fails, other = (1, 0) if kind in GENERATED else (0, 1)
    failed = [rank["failed"][kind] for rank in ranks]
    (name, text), (also, heard) = failed[fails], failed[other]
    reason = GENERATED[kind] if fails else "sample 13"
    assert name == also == ("UnknownError" if fails else "InvalidArgumentError")
    assert reason in text and reason in heard
    assert heard.startswith(f"rank {fails}/2 has stopped: {name}")
    assert [rank["failed"]["after that"] for rank in ranks] == [[], []]
