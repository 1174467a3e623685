"""Losses, metrics and states that need the whole batch: N ranks equal one process."""

from __future__ import annotations

import pytest
from compare import assert_cases_close, assert_close, assert_same

from installed import needs_compiled_steps
from launch import launch
from reference import reference
from tiers import full

WHOLE = "so every rank computes whole batches"
PART = "so each rank computes it from its own batch"
VALUE = "so the logs show the mean of the ranks' values for their parts"
OF_PART = "normalizes by the moments of each rank's part of the batch"

# What needs the whole batch in custom steps that gather nothing.
REASONS = (
    "the loss whose gradient it takes (Sqrt in whole_batch.py:",
    "the metric 'right' (MatMul in whole_batch_said.py:",
    "the value assigned to 'queue/kept' may need all samples of a batch",
    "a loss that depends on gradients may need all samples of a batch",
    "the condition of an update (StatelessIf in whole_batch_said.py:",
    "the global variable 'WIDTHS' may need all samples of a batch",
    "the Python attribute 'calls' may need all samples of a batch",
    "the Python attribute 'turn' may need all samples of a batch",
    "To share the work, keep it in a tf.Variable, or turn off run_eagerly",
)


# What the quick tier trains with: some losses, custom steps and metrics.
QUICK = (
    *("root_of_mean", "shares", "over_rows", "uncertain", "contrastive", "own_sum", "metrics"),
    "masked_norm",
)
COMPILED = (
    *("root_of_mean", "own_dice", "sum_of_samples", "valid", "shares", "contrastive", "anchors"),
    "own_sum",
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
def test_losses_steps_and_metrics_equal_one_process(
    scripts, ranks: int, mode: tuple[str, ...]
) -> None:
    args = list(QUICK) if mode == ("quick",) else [*mode, *(COMPILED if "jit" in mode else ())]
    (alone,) = reference(scripts / "whole_batch.py", args=args)
    run = launch(scripts / "whole_batch.py", np=ranks, args=args, timeout=300, pooled=True).check()
    assert_same(run.results)
    assert_cases_close(run.results[0], alone, 1e-5)
    said = {words for words in (WHOLE, OF_PART, PART) if words in run.stderr[0]}
    assert said == ({WHOLE} if "eager" in mode else set()), "a wrong warning"
    assert "the returned value" not in run.stderr[0], "a wrong warning"
    graphs = not {"eager", "jit"} & set(mode)
    for text, speaks in zip(run.stderr, [graphs, *[False] * (ranks - 1)]):
        assert text.count("tf.summary 'mean of part' in a step covers only rank 0's part") == speaks
        assert text.count("tf.summary '") == speaks, "not of the weights"


@pytest.mark.parametrize(("ranks", "mode"), [(2, ()), full(3, ()), full(2, ("tf_keras",))])
def test_custom_steps_that_gather_nothing_get_whole_batches(
    scripts, ranks: int, mode: tuple[str, ...]
) -> None:
    """Losses over several samples in custom steps without collectives."""
    cases = ("computes_loss", "pairs", "queue", "penalty", "turns", "averages", "keeps", "dropped")
    more = ("counts_calls", "lists", "widths", "eager_functions", "differs")
    args = [*mode, *cases, *more, "views", "adaptive", "skips", "quotient"]
    (alone,) = reference(scripts / "whole_batch.py", args=args)
    run = launch(scripts / "whole_batch.py", np=ranks, args=args, timeout=120, pooled=True).check()
    assert_same(run.results)
    for case, expected in alone.items():
        assert_close(run.results[0][case], expected, 1e-5)
    # One line per model.
    lines = 15 if "tf_keras" in mode else 17
    assert [text.count(WHOLE) for text in run.stderr] == [lines, *[0] * (ranks - 1)]
    if not mode:
        assert not [why for why in REASONS if why not in run.stderr[0]]
    assert VALUE not in run.stderr[0], "a warning that is wrong"


# Normalization by a batch's moments. In these cases every rank computes whole batches: predict that
# uses a batch's moments, a gradient through them, and virtual batches.
NORMS = (
    *("norms", "frozen", "renormed", "masked_norm", "in_training_always", "slopes", "of_tf_keras"),
    "half",
)


@pytest.mark.parametrize(
    ("ranks", "mode"),
    [
        (2, ("tf_keras", "norms")),
        full(3, NORMS),
        full(2, ("eager", *NORMS)),
        full(3, ("tf_keras", *NORMS)),
        full(2, ("tf_keras", "eager", *NORMS)),
        pytest.param(2, ("jit", *NORMS), marks=[pytest.mark.full, needs_compiled_steps]),
        pytest.param(
            3, ("tf_keras", "jit", *NORMS), marks=[pytest.mark.full, needs_compiled_steps]
        ),
    ],
    ids=lambda value: "-".join(value[:2]) if isinstance(value, tuple) else None,
)
def test_normalization_uses_the_whole_batchs_moments(
    scripts, ranks: int, mode: tuple[str, ...]
) -> None:
    (alone,) = reference(scripts / "whole_batch.py", args=mode)
    run = launch(scripts / "whole_batch.py", np=ranks, args=mode, timeout=300, pooled=True).check()
    assert_same(run.results)
    for case, expected in alone.items():  # float32 and float16
        assert_close(run.results[0][case], expected, 3e-3 if case == "half" else 3e-5)
    assert OF_PART not in run.stderr[0]


@pytest.mark.full
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("mode", [(), ("tf_keras",), ("jit", "even")], ids="-".join)
@pytest.mark.parametrize("model", ["resnet", "mobilenet", "unet"])
def test_models_with_many_norm_layers_equal_one_process(
    scripts, model: str, mode: tuple[str, ...], ranks: int
) -> None:
    """Without relu, with which even one process differs after reordering its rows."""
    words = [model, "smooth", *mode]
    (alone,) = reference(scripts / "norm_models.py", args=words)
    run = launch(scripts / "norm_models.py", np=ranks, args=words, timeout=600).check()
    assert_same(run.results)
    assert_close(run.results[0]["numbers"], alone["numbers"], 1e-4)
