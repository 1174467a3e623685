"""Models whose output for one sample depends on others of its batch: N ranks equal one process."""

from __future__ import annotations

from typing import Any

import pytest
from compare import assert_cases_close, assert_same

from launch import launch
from reference import reference
from tiers import full

MODEL = "makes of one sample depends on the others of its batch"
STEP = "so every rank computes whole batches"
UNTOLD = "nobody can tell whether it computes each sample for itself"
SAME = "were given the same samples"
SOME = [
    "recommender",
    "hidden",
    "stateful",
    "counted",
    "numbered",
    "root_of_function",
    "turned",
    "rolled",
    "untold",
]
APART = ("attends", "chosen", "of_function")


def equal_one_process(scripts: Any, ranks: int, args: list[str]) -> list[str]:
    """What is on stderr."""
    (alone,) = reference(scripts / "forward.py", args=args)
    run = launch(scripts / "forward.py", np=ranks, args=args, timeout=300).check()
    assert_same(run.results)
    assert_cases_close(run.results[0], alone, 1e-5)
    found: list[str] = run.stderr
    return found


@pytest.mark.parametrize(
    ("ranks", "mode"),
    [
        (2, SOME),
        full(2, []),
        full(3, []),
        full(2, ["tf_keras"]),
        full(2, ["eager"]),
        full(2, ["tf_keras", "eager"]),
    ],
    ids=lambda value: "-".join(value[:2]) or "graph" if isinstance(value, list) else None,
)
def test_mixing_is_told(scripts, ranks: int, mode: list[str]) -> None:
    stderr = equal_one_process(scripts, ranks, mode)
    for words, times in ((MODEL, 1), (STEP, 1), (UNTOLD, 1), (SAME, 0)):
        assert [text.count(words) for text in stderr] == [times, *[0] * (ranks - 1)], words


@pytest.mark.full
@pytest.mark.parametrize("mode", [[], ["tf_keras"]], ids=["keras", "tf_keras"])
def test_each_for_itself_is_shared(scripts, mode: list[str]) -> None:
    stderr = equal_one_process(scripts, 2, [*mode, *APART])
    assert not [words for words in (MODEL, STEP, UNTOLD) if words in stderr[0]]
