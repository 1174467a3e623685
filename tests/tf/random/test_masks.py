"""What a step draws for its samples: all ranks' rows together are bitwise one process's draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from installed import needs_compiled_steps
from launch import launch
from reference import reference
from tiers import full

EVEN = "shapes of even parts"
APART = ("keras", "ops", "generator", "stateless", "shapes", EVEN)
TOGETHER = tuple(f"{family} together" for family in ("keras", "ops", "stateless", "shapes"))
COMPILED = [pytest.mark.full, needs_compiled_steps]
QUICK = (
    *("keras: normal", "keras: dropout of one", "keras: global", "keras: number", "keras: beta"),
    *("ops: uniform", "ops: no seed", "ops: truncated", "ops: gamma, turned", "ops: dropout"),
    *("generator: normal", "generator: int", "stateless: by step", "stateless: categorical"),
    *("shapes: times first", "shapes: two views", "shapes: as many as a batch", "shapes: for all"),
)

NOT_FIRST = (
    *("ops: gamma, turned", "shapes: as many as a batch", "shapes: two views"),
    "shapes: times first",
)


def rows_of(rank: int, ranks: int, rows: list[int]) -> list[int]:
    """A rank's part of a batch, which is contiguous."""
    return rows[rank * len(rows) // ranks : (rank + 1) * len(rows) // ranks]


def unlike(one: dict[str, Any], results: list[dict[str, Any]], split: bool) -> dict[str, str]:
    """By draw, the first difference between a rank and one process."""
    found: dict[str, str] = {}
    for rank, result in enumerate(results):
        assert len(result["calls"]) == len(one["calls"]), f"rank {rank}: another number of steps"
        for number, (call, whole) in enumerate(zip(result["calls"], one["calls"])):
            mine = rows_of(rank, len(results), whole["rows"]) if split else whole["rows"]
            # A rank without samples computes with one that does not count.
            assert call["rows"][: len(mine)] == mine, (rank, number, call["rows"])
            assert len(call["rows"]) == max(len(mine), 1), (rank, number, call["rows"])
            for name in set(whole) - {"rows"}:
                expected = dict(zip(whole["rows"], whole[name]))
                if [expected[row] for row in mine] != call[name][: len(mine)]:
                    found.setdefault(name, f"rank {rank}, call {number}")
    return found


def check(
    scripts: Path,
    ranks: int,
    args: tuple[str, ...],
    split: bool = True,
    env: dict[str, str] | None = None,
    pooled: bool = False,
) -> None:
    (one,) = reference(scripts / "masks.py", args=args)
    script = scripts / "masks.py"
    run = launch(script, np=ranks, args=args, timeout=300, env=env, pooled=pooled).check()
    assert len(one["calls"]) == (0 if "jit" in args else 6), "two epochs of three batches"
    assert unlike(one, run.results, split) == {}
    for result in run.results:
        assert result.get("predicted") == one.get("predicted")
        for ours, theirs in zip(result.get("weights", []), one.get("weights", [])):
            largest = np.abs(theirs).max(axis=0)  # per draw: the draws themselves may cancel out
            far = np.abs(np.subtract(ours, theirs)) / np.maximum(largest, 1)
            assert far.max() <= 1e-5, np.unravel_index(far.argmax(), far.shape)


@pytest.mark.parametrize("ranks", [2, full(3)])
def test_draws_of_a_layer_in_fit_equal_one_process(scripts, ranks: int) -> None:
    check(scripts, ranks, ("layer", *QUICK), pooled=ranks == 2)


@pytest.mark.full
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("family", APART)
@pytest.mark.parametrize("mode", ["graph", "eager", pytest.param("jit", marks=COMPILED)])
def test_draws_of_every_function_equal_one_process(
    scripts, ranks: int, family: str, mode: str
) -> None:
    """If ranks do not divide a batch evenly, functions that draw get all of it on every rank."""
    split = family != EVEN or ranks == 2
    check(scripts, ranks, ("layer", mode, family), split=split)


@pytest.mark.full
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("where", ["evaluate", "predict", "train_step", "loss"])
@pytest.mark.parametrize("mode", ["graph", "eager", pytest.param("jit", marks=COMPILED)])
def test_draws_anywhere_in_a_model_equal_one_process(
    scripts, ranks: int, where: str, mode: str
) -> None:
    check(scripts, ranks, (where, mode, *QUICK))


@pytest.mark.full
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("mode", ["graph", "eager", pytest.param("jit", marks=COMPILED)])
def test_draws_of_tf_keras_equal_one_process(scripts, ranks: int, mode: str) -> None:
    check(scripts, ranks, ("layer", "tf_keras", mode, "ops", "generator", "stateless"))


@pytest.mark.parametrize("where", ["shard", full("loop")])
def test_draws_in_a_loop_over_divided_data_equal_one_process(scripts, where: str) -> None:
    """Two ranks divide the batches. Loops are not analyzed, so only the first dimension counts.

    Not in eager code: the last part has one sample, and a first dimension of 1 means all samples.
    """
    env = {"TF_MPI_SHARD": "dataset"} if where == "loop" else None
    draws = [draw for draw in QUICK if draw not in NOT_FIRST]
    check(scripts, 2, (where, "graph", *draws), env=env, pooled=where == "shard")


@pytest.mark.full
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_draws_for_all_samples_together_equal_one_process(scripts, ranks: int, mode: str) -> None:
    """A permutation of the batch: every rank has the whole one."""
    for family in TOGETHER:
        check(scripts, ranks, ("layer", mode, family), split=False)
