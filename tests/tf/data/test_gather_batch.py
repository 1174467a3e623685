"""tf.mpi.gather_batch: a whole-batch loss in custom loops."""

from __future__ import annotations

import pytest
from compare import assert_close, assert_same

from launch import launch
from reference import reference
from tiers import full


@pytest.mark.parametrize("ranks", [2, full(3)])
def test_a_whole_batch_loss_equals_one_process(scripts, ranks: int) -> None:
    """43 samples in batches of 11 do not divide evenly, and the last batch is smaller still."""
    (alone,) = reference(scripts / "gather_batch.py")
    results = (
        launch(scripts / "gather_batch.py", np=ranks, timeout=180, pooled=True).check().results
    )
    assert_same(results)
    for case in ("eager", "function", "compiled", "uneven", "numbers", "complex"):
        assert_close(results[0][case], alone[case], 1e-5)
    exact = dict(results[0]["exact"])
    numbers = exact.pop("numbers")
    of_complex = [[number % 7, -2 * (number % 7)] for number in numbers]
    assert exact == {
        "int64": numbers,
        "uint64": numbers,
        "complex64": of_complex,
        "complex128": of_complex,
    }
    assert "not a scalar" in results[0]["refused"]["scalar"]
    assert "Set jit_compile=False" in results[0]["refused"]["unknown shape"]
    assert alone["refused"] == {"scalar": "", "unknown shape": ""}  # returns x itself
