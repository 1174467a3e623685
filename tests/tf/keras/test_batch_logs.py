"""A batch's logs cover all ranks for a callback that reads them, on whichever rank it does."""

from __future__ import annotations

import numpy as np
import pytest

from reference import reference
from tiers import full

SCRIPT = "batch_logs.py"
SOME = ("seldom", "evaluates", "keeps, one rank", "returned")
MORE = (
    *(*SOME, "apart", "outputs", "spread", "whole", "keeps"),
    *("seldom, one rank", "spread, one rank", "shows, one rank", "outputs, one rank"),
    "returned_whole, one rank",
)


@pytest.mark.parametrize(
    "ranks, keras, ways",
    [(2, "keras", SOME), full(2, "keras", MORE), full(2, "tf_keras", MORE), full(3, "keras", MORE)],
)
def test_logs_that_are_read_cover_all_ranks(launch, scripts, ranks, keras, ways):
    plain = sorted({way.partition(", ")[0] for way in ways})
    one = reference(scripts / SCRIPT, args=[keras, *plain])[0]
    run = launch(scripts / SCRIPT, args=[keras, *ways], np=ranks, timeout=120, pooled=True).check()
    ranks = run.results
    for way in (*ways, "itself"):
        for rank, result in enumerate(ranks):
            name, _, alone = way.partition(", ")
            expected = one[name]
            if alone and rank != 1:  # an evaluation in each of two epochs, of five batches each
                expected = [*expected[4:6], *expected[11:13]] if name == "shows" else []
            assert np.allclose(result[way], expected, rtol=1e-5), (way, rank)
    for result in ranks:
        assert result["meetings"] == [1, 1, 1]  # logs that nothing reads are not exchanged
    assert ranks[0]["reported"] == [False, True]
    assert "a callback reads the metric 'loss' before the end of the epoch" in run.stderr[0]
