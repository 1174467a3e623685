"""Every dense optimizer op: two ranks on half batches equal one process on the whole batch.

The cases are the ops and dtypes for which TensorFlow has kernels; optimizer_ops.py trains all of
them in one process, 50 steps each in the full tier. test_control.py shows that these comparisons
can fail.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from compare import assert_close, assert_same

from reference import reference
from tiers import full

MODES = ("ref", "resource", "function", "eager")
QUICK = ("function", "12")  # and the number of steps; the full tier has all modes, and 50 steps
WIDE = {"float32": 1e-5, "float64": 1e-12, "complex128": 1e-12}
BY_PARTS = ("float16", "bfloat16", "complex64")
NUM_OPS = {"ref": 16, "resource": 18, "function": 18, "eager": 18}


class Runs(NamedTuple):
    """The output of one mode's processes: {case: {state: array}}."""

    mode: str
    ranks: list[dict[str, Any]]
    alone: dict[str, Any]


@pytest.fixture(
    scope="module",
    params=[QUICK, *(full((mode,)) for mode in MODES)],
    ids=" ".join,
)
def runs(request, launch, scripts) -> Runs:
    script, args = scripts / "optimizer_ops.py", request.param
    ranks = launch(script, np=2, args=args, timeout=180, pooled=True).check().results
    alone = reference(script, args=args)[0]
    return Runs(args[0], ranks, alone)


def cases(runs: Runs, *dtypes: str) -> list[str]:
    return [case for case in runs.alone if case.split()[1] in dtypes]


def test_every_op_was_trained(runs):
    assert len({case.split()[0] for case in runs.alone}) == NUM_OPS[runs.mode]
    assert runs.ranks[0].keys() == runs.alone.keys()
    assert all(len(cases(runs, dtype)) >= 8 for dtype in (*WIDE, *BY_PARTS))


def test_ranks_are_bitwise_equal(runs):
    assert_same(runs.ranks)


@pytest.mark.parametrize("dtype", WIDE)
def test_equals_one_process_on_the_whole_batch(runs, dtype):
    for case in cases(runs, dtype):
        assert_close(runs.ranks[1][case], runs.alone[case], WIDE[dtype])


@pytest.mark.parametrize("dtype", BY_PARTS)
def test_narrow_types_equal_the_stock_op_on_the_mean(runs, dtype):
    """Bitwise: narrow gradients are summed in float32 and rounded once."""
    for case in cases(runs, dtype):
        assert runs.ranks[1][case] == runs.alone[case], case
