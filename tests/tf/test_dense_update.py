"""The update of a large variable divided among the ranks: each updates a share of it."""

from __future__ import annotations

import pytest
from compare import assert_same

EVERY = {"TF_MPI_DENSE_UPDATE": "every"}
DIVIDED = {"TF_MPI_DENSE_UPDATE": "divided"}


def test_every_op_has_the_bits_of_an_update_by_every_rank(launch, scripts):
    script, args = scripts / "dense_update_ops.py", ["resource"]
    divided = launch(script, np=3, args=args, env=DIVIDED).check().results
    every = launch(script, np=3, args=args, env=EVERY).check().results
    assert_same([rank["arrays"] for rank in [*every, *divided]])
    for rank in every:
        assert rank["divided"] == 0
    for rank in divided:
        assert rank["divided"] == rank["divisible"] >= 18 * 2 * 4


@pytest.fixture(scope="module")
def found(launch, scripts):
    """{what TF_MPI_DENSE_UPDATE says: what the ranks printed}; by default, `auto`."""
    script = scripts / "dense_update.py"
    return {
        mode: launch(script, np=np, env={} if mode == "auto" else {"TF_MPI_DENSE_UPDATE": mode})
        .check()
        .results
        for mode, np in (("auto", 2), ("every", 2), ("divided", 3))
    }


DIVISIBLE = ("descent", "momentum", "adam", "raw", "applied")
WITH_SLOTS = ("momentum", "adam")
OTHERS = ("clipped", "read", "watched", "locking", "ref")


def test_the_bits_are_those_of_an_update_by_every_rank(found):
    for case in (*DIVISIBLE, *OTHERS, "held"):
        digests = {rank[case]["digest"] for mode in ("auto", "every") for rank in found[mode]}
        assert len(digests) == 1, case


def test_equals_one_process_on_the_whole_batch(found):
    """By numpy. The averages of momentum and Adam are compared by their bits only."""
    for case in ("descent", "raw", "applied", *OTHERS, "twice", "held"):
        for ranks in found.values():
            for rank in ranks:
                assert rank[case]["distance"] < 1e-5, case
                assert rank[case]["digest"] == ranks[0][case]["digest"], case


def test_what_is_divided(found):
    """All but the first step, which brings variables in step; not where the average is read.

    `auto` leaves variables with slots to every rank.
    """
    for mode, ranks in found.items():
        for rank in ranks:
            for case in (*DIVISIBLE, "held"):
                every = mode == "every" or (mode == "auto" and case in WITH_SLOTS)
                variables = 0 if every else 1 if case == "held" else 2
                assert rank[case]["divided"] == [0] + [variables] * 4, (mode, case)
            for case in OTHERS:
                assert rank[case]["divided"] == [0] * 5, (mode, case)


def test_what_was_read_stays_as_it_was(found):
    assert all(rank["held"]["same"] for ranks in found.values() for rank in ranks)


def test_those_that_go_on_update_the_share_of_one_that_has_ended(found):
    for mode, ranks in found.items():
        alone = [rank["alone"] for rank in ranks if rank["alone"]]
        assert len(alone) == len(ranks) - 1
        for one in alone:
            assert one["distance"] < 1e-5, mode
            assert one["digest"] == alone[0]["digest"]
            assert one["divided"] == (0 if mode == "every" else 2)


DIVISIBLE_BY_KERAS = ("fit", "loop", "looks", "constraint", "decay")
OTHERS_BY_KERAS = ("subclass", "clipped", "momentum")


@pytest.fixture(scope="module")
def by_keras(launch, scripts):
    """As `found`, of Keras's SGD. Every rank has data of its own."""
    script, off = scripts / "dense_update_keras.py", {"TF_MPI_SHARD": "off"}
    return {
        mode: launch(script, np=np, args=["own"], env=off | mode_env).check().results
        for mode, np, mode_env in (("auto", 2, {}), ("every", 2, EVERY), ("divided", 3, DIVIDED))
    }


def test_keras_sgd_has_the_bits_of_its_own_update(by_keras):
    for case in (*DIVISIBLE_BY_KERAS, *OTHERS_BY_KERAS):
        digests = {rank[case]["digest"] for mode in ("auto", "every") for rank in by_keras[mode]}
        assert len(digests) == 1, case


def test_keras_sgd_equals_one_process_on_the_whole_batch(by_keras):
    for ranks in by_keras.values():
        for case in (*DIVISIBLE_BY_KERAS, *OTHERS_BY_KERAS):
            for rank in ranks:
                assert rank[case]["distance"] < 1e-5, case
                assert rank[case]["digest"] == ranks[0][case]["digest"], case


def test_what_is_divided_of_keras_sgd(by_keras):
    """Not where code of the script's own has the average, nor with momentum."""
    for mode, ranks in by_keras.items():
        for rank in ranks:
            variables = 0 if mode == "every" else 2
            for case in DIVISIBLE_BY_KERAS:
                assert rank[case]["divided"][1:] == [variables] * 4, (mode, case)
            for case in OTHERS_BY_KERAS:
                assert rank[case]["divided"] == [0] * 5, (mode, case)


@pytest.mark.parametrize("ranks", [2, 3])
def test_parts_of_a_batch_that_fit_gives_the_ranks(launch, scripts, ranks):
    """All ranks decide alike: by weights where parts are unequal, which no update of shares has."""
    results = launch(
        scripts / "dense_update_keras.py",
        np=ranks,
        args=["shared"],
        env=DIVIDED,
    )
    for rank in results.check().results:
        assert rank["equal"]["divided"][1:] == [2] * 4
        assert rank["unequal"]["divided"] == [0] * 5
        for case in ("equal", "unequal"):
            assert rank[case]["distance"] < 1e-5, case
            assert rank[case]["digest"] == results.results[0][case]["digest"]
