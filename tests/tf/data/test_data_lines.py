"""What ranks say of their data: in this process, of pipelines that are made up."""

from __future__ import annotations

import types
from typing import Any

import pytest

from extras import load


@pytest.fixture(name="feeds", scope="module")
def feeds_fixture() -> Any:
    return load("tensorflow.mpi._src.data.feeds")


@pytest.fixture(name="said")
def said_fixture(feeds: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines that log.once is given."""
    said: list[str] = []
    monkeypatch.setattr(feeds.log, "once", lambda line, *_, **__: said.append(line))
    return said


def test_ranks_that_were_given_different_data(feeds, said):
    feeds.streams._other_data("fit", "arrays")
    assert said[0].startswith("fit: the ranks were given different arrays. All of them train and")
    assert "call tf.mpi.own_data() before that, or set TF_MPI_SHARD=off" in said[0]


def test_ranks_that_were_given_more_or_less(feeds):
    words = (
        "fit: rank 0 was given 3 batches of 4 or 8 samples, rank 1 an unknown number of batches. "
        "Give all ranks the same data"
    )
    with pytest.raises(ValueError, match=words):
        feeds.streams._check_amounts("fit", [[3, [4, 8]], [None, None]])


def test_a_map_that_draws_in_order(feeds, said, monkeypatch):
    monkeypatch.setattr(feeds.streams.determinism, "draws_in_order", lambda _: "augment")
    feeds.streams._draws_in_order("fit", None)
    assert said[0].startswith("fit: map 'augment' draws for one sample after another, so rank 0")
    assert "With num_parallel_calls=tf.data.AUTOTUNE in that map" in said[0]


def test_python_that_yields_other_data_than_rank_0s(feeds, said):
    import numpy as np

    note = feeds.streams._note_other_elements("fit")
    assert note(np.zeros(2), np.zeros(2)) and not said
    assert not note(np.zeros(2), np.ones(2))
    assert said[0].startswith("fit: this rank's Python yields other data than rank 0's")


def wall(feeds: Any, monkeypatch: Any, name: str, why: str | None, is_map: bool = False) -> Any:
    dataset = types.SimpleNamespace(_inputs=lambda: [], _functions=lambda: [])
    selection = feeds.selection
    monkeypatch.setattr(selection.transformations, "name", lambda _: name)
    monkeypatch.setattr(selection.transformations, "is_map", lambda _: is_map)
    monkeypatch.setattr(selection.transformations, "is_filled_file", lambda _: False)
    monkeypatch.setattr(selection, "_of_map", lambda _: "'decode'")
    found = types.SimpleNamespace(
        shared=[], walls=[types.SimpleNamespace(dataset=dataset, why=why)]
    )
    selection._say(dataset, found)


@pytest.mark.parametrize(
    ("name", "why", "words"),
    [
        ("padded_batch", None, "padded_batch() pads to the longest sample of a batch"),
        ("cache", None, "cache(file) is filled with all samples, on each rank into a file of its"),
        ("sort", None, "sort() needs every sample before it"),
        ("map", "looks at a batch (Assert)", "map 'decode' looks at a batch (Assert)"),
    ],
)
def test_what_makes_every_rank_do_the_work(feeds, said, monkeypatch, name, why, words):
    wall(feeds, monkeypatch, name, why, is_map=name == "map")
    assert said[0].startswith(f"input pipeline: {words}")
    assert (
        "every rank does all the work up to there ('decode'), and only what comes after" in said[0]
    )


def batches(feeds: Any, **facts: Any) -> Any:
    """A PyDataset that has been looked at."""
    python_batches = feeds.python_batches
    watched = {"digests": [1], "changed": [], "drawn": [], "draws": False}
    pooled = {"_pooled": False, "_workers": 1, "_length": lambda: 3}
    made = object.__new__(python_batches.Batches)
    given = {key: value for key, value in facts.items() if key not in watched}
    more = {key: value for key, value in facts.items() if key in watched}
    vars(made).update(_watched=types.SimpleNamespace(**watched | more), **pooled | given)
    return made


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"digests": []}, "has no batches"),
        ({"changed": ["seen"]}, "changes its attribute 'seen' when it makes a batch"),
        (
            {"_pooled": True, "_length": lambda: None},
            "has workers and no length, and goes on in the next epoch where it was",
        ),
        ({}, None),
    ],
)
def test_why_every_rank_makes_all_batches_of_a_pydataset(feeds, facts, words):
    assert batches(feeds, **facts).why_not() == words


def test_an_error_that_another_rank_has_told(feeds):
    """Of its own, as far as it is known; and who had it."""
    failures = feeds.streams.failures
    text = failures._decode_failure(failures._message(ValueError("no such file")))
    assert text.decode().startswith("rank 0/1 has stopped: ValueError: no such file")
