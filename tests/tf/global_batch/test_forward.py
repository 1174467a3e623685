"""Models whose output for a sample depends on other samples of the batch equal one process."""

from __future__ import annotations

import re

import pytest
from compare import assert_cases_close, assert_same

from launch import launch
from reference import reference
from tiers import full

WHOLE = "so every rank computes whole batches"
SAME = "had the same samples"
APART = {"attends", "chosen", "of_function", "sum_of_function", "asserted", "gradient_by_sample"}
SOME = (
    *("counted", "rolled", "looks", "own_loop", "own_gradient", "own_gradient_in_functions"),
    *("gradient_by_sample", "step_in_function"),
)
# By case, what makes every rank compute whole batches, and how the work could be shared.
REASONS = {
    "rolled": "the loss 'mean_squared_error' (Roll in forward.py:",
    "looks": "a step that cannot be traced into a graph ('SymbolicTensor' object has no attribute "
    "'numpy') may need all samples of a batch, so every rank computes whole batches. The result is "
    "that of one process, and so is the speed. To share the work, use TensorFlow's ops only",
    "own_loop": "the script's own loop over the batches (make_train_function) may need all samples "
    "of a batch, so every rank computes whole batches. The result is that of one process, and so "
    "is the speed. To share the work, leave the loop to Keras",
    "step_in_function": "the loss whose gradient it takes (an argument of a tf.function) may need "
    "all samples of a batch, so every rank computes whole batches. The result is that of one "
    "process, and so is the speed. To share the work, remove the tf.function, as Keras traces "
    "train_step itself",
    "own_gradient": "the script's own gradient (IdentityN in forward.py:",
}
ROW = re.compile(r"plan: .*? \| (\w+) +\| (split|gathered|whole) ")


def plans(stderr: str) -> dict[str, dict[str, str]]:
    """The table of plans, by case and call."""
    parts = stderr.split("CASE ")[1:]
    return {part.partition("\n")[0].strip(): dict(ROW.findall(part)) for part in parts}


@pytest.mark.parametrize(
    ("ranks", "mode"),
    [
        (2, SOME),
        full(2, ()),
        full(3, ()),
        full(2, ("tf_keras",)),
        full(2, ("eager",)),
        full(2, ("tf_keras", "eager")),
    ],
    ids=lambda value: "-".join(value[:2]) or "graph" if isinstance(value, tuple) else None,
)
def test_models_that_mix_samples_get_whole_batches(
    scripts, ranks: int, mode: tuple[str, ...]
) -> None:
    """What mixes samples gets whole batches and equals one process; the rest is split."""
    (alone,) = reference(scripts / "forward.py", args=mode)
    env = {"TF_MPI_LOG_LEVEL": "debug"}
    run = launch(scripts / "forward.py", np=ranks, args=mode, env=env, timeout=300).check()
    assert_same(run.results)
    assert_cases_close(run.results[0], alone, 1e-5)
    found = plans(run.stderr[0])
    wrong = {}
    for case, said in found.items():
        call = "predict" if case == "counted" else "fit"
        if said and said[call] != ("split" if case in APART else "whole"):
            wrong[case] = said
    assert not wrong and len(found) == len(alone)
    assert WHOLE in run.stderr[0]
    if mode == SOME:
        for case, words in REASONS.items():
            assert words in run.stderr[0].partition(f"CASE {case}\n")[2].partition("CASE ")[0]
    assert not [text for text in run.stderr[1:] if WHOLE in text]
    assert not [text for text in run.stderr if SAME in text]
