"""Stock TensorFlow, and two ranks, load and run what two ranks have saved in training."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from compare import assert_close

from installed import tensorflow_version

pytestmark = pytest.mark.full

KINDS = ["model", "checkpoint", "session"]


class Runs(NamedTuple):
    """The variables by kind and place: of each rank, of the official wheel, of ranks that load."""

    ranks: list[dict[str, Any]]
    stock: dict[str, Any]
    loaded: list[dict[str, Any]]


@pytest.fixture(scope="module")
def runs(launch, scripts, stock_python, tmp_path_factory) -> Runs:
    directory = tmp_path_factory.mktemp("saved")
    (directory / "v1").mkdir()
    ranks = launch(scripts / "saved.py", np=2, args=["train", directory]).check().results
    stock = launch([stock_python, scripts / "saved.py"], np=0, args=["load", directory]).check()
    loaded = launch(scripts / "saved.py", np=2, args=["load", directory]).check().results
    return Runs(ranks, stock.results[0], loaded)


def test_every_kind_is_loaded_by_the_official_wheel(runs):
    assert runs.stock["stock"] is True
    assert runs.stock["version"] == tensorflow_version()


@pytest.mark.parametrize("kind", KINDS)
def test_loaded_values_equal_the_saved_ones(runs, kind):
    """Bitwise, and on both ranks, which trained between the save and the end."""
    for rank in runs.ranks:
        assert rank[kind]["saved"] == runs.stock[kind]["saved"]
        assert rank[kind]["end"] == runs.ranks[0][kind]["end"] != rank[kind]["saved"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_official_wheel_trains_on_like_the_ranks(runs, kind):
    """The saved training function or op, alone on the whole batches; slots matter."""
    ours, theirs = runs.ranks[1][kind]["end"], runs.stock[kind]["end"]
    assert len(ours) == len(theirs) == 3
    for index, (a, b) in enumerate(zip(ours, theirs)):
        assert_close({index: a}, {index: b}, 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_that_load_train_on_like_the_others(runs, kind):
    """Although Python did not create the loaded function's Apply ops or name its variables in
    order."""
    for rank in runs.loaded:
        assert rank[kind]["saved"] == runs.stock[kind]["saved"]
        assert rank[kind]["end"] == runs.loaded[0][kind]["end"]
        for index, (a, b) in enumerate(zip(rank[kind]["end"], runs.stock[kind]["end"])):
            assert_close({index: a}, {index: b}, 1e-5)
