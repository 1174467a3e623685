"""Losses, metrics and states that only the whole batch can tell: N ranks equal one process."""

from __future__ import annotations

import pytest
from compare import assert_cases_close, assert_close, assert_same

from installed import needs_compiled_steps
from launch import launch
from reference import reference
from tiers import full

WHOLE = "so every rank computes whole batches"
PART = "computes it of its part of the batch only"
OF_PART = "normalizes by each rank's part of the batch"


# What the quick tier trains with: of losses, of steps of the script's own, of metrics.
QUICK = (
    *("root_of_mean", "own_dice", "masked", "valid", "contrastive", "average_loss", "own_sum"),
    *("metrics", "outputs"),
)
COMPILED = (
    *("root_of_mean", "own_dice", "sum_of_samples", "valid", "contrastive", "anchors", "own_sum"),
)


@pytest.mark.parametrize(
    ("ranks", "mode"),
    [
        (2, ("quick",)),
        full(2, ()),
        full(3, ()),
        full(2, ("tf_keras",)),
        full(3, ("tf_keras",)),
        full(2, ("eager",)),
        full(2, ("tf_keras", "eager")),
        pytest.param(2, ("jit",), marks=[pytest.mark.full, needs_compiled_steps]),
    ],
    ids=lambda value: "-".join(value) or "graph" if isinstance(value, tuple) else None,
)
def test_equal_one_process(scripts, ranks: int, mode: tuple[str, ...]) -> None:
    args = list(QUICK) if mode == ("quick",) else [*mode, *(COMPILED if "jit" in mode else ())]
    (alone,) = reference(scripts / "whole_batch.py", args=args)
    run = launch(scripts / "whole_batch.py", np=ranks, args=args, timeout=300, pooled=True).check()
    assert_same(run.results)
    assert_cases_close(run.results[0], alone, 1e-5)
    said = {words for words in (WHOLE, OF_PART, PART) if words in run.stderr[0]}
    assert said == ({WHOLE} if "eager" in mode else set()), "a warning that is wrong"
    graphs = not {"eager", "jit"} & set(mode)
    for text, speaks in zip(run.stderr, [graphs, *[False] * (ranks - 1)]):
        assert text.count("tf.summary 'mean of part' in a step is of rank 0's part") == speaks
        assert text.count("tf.summary '") == speaks, "not of the weights"


@pytest.mark.parametrize(("ranks", "mode"), [(2, ()), full(3, ()), full(2, ("tf_keras",))])
def test_a_part_is_not_taken_for_the_batch(scripts, ranks: int, mode: tuple[str, ...]) -> None:
    """Losses of several samples in steps of the script's own that gather nothing."""
    cases = ("computes_loss", "pairs", "queue", "penalty", "turns", "dropped", "batch_norm")
    args = [*mode, *cases]
    (alone,) = reference(scripts / "whole_batch.py", args=args)
    run = launch(scripts / "whole_batch.py", np=ranks, args=args, timeout=120, pooled=True).check()
    assert_same(run.results)
    for case, expected in alone.items():
        assert_close(run.results[0][case], expected, 1e-5)
    assert [text.count(WHOLE) for text in run.stderr] == [6, *[0] * (ranks - 1)]  # one a model
    assert [text.count(OF_PART) for text in run.stderr] == [1, *[0] * (ranks - 1)]
