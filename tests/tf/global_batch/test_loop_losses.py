"""Loops over a divided dataset: a line for losses whose average is not the whole batch's."""

from __future__ import annotations

import pytest

from tiers import full

SUMS = {"sum", "sum by a constant", "one per sample"}
OTHERS = {"mean of valid", "sum and a mean", "root of a mean"}


@pytest.mark.parametrize("args", [["quick"], full([])], ids=str)
def test_losses_that_are_not_sample_means_are_reported(launch, scripts, args):
    run = launch(scripts / "loop_losses.py", np=2, args=args, timeout=120).check()
    told, other = run.results
    assert not any(told["whole"].values())  # nothing is divided yet
    assert told["value"] == 4**2 + 2
    for found in told["found"].values():
        lines = {name: [line for line in said if "loss (" in line] for name, said in found.items()}
        assert {name for name, said in lines.items() if said} == SUMS | OTHERS
        assert all(
            len(said) == 1 and "loop_losses.py:" in said[0] for said in lines.values() if said
        )
        assert {name for name in lines if "1/2 of it" in "".join(lines[name])} == SUMS
    others = {name: "".join(said).count("loss (") for name, said in told["others"].items()}
    assert others == {"Keras's mean": 0, "Keras's sum": 1, "Session's mean": 0, "Session's sum": 1}
    uneven = [line for line in told["uneven"] if "batches of 4 and 5 samples" in line]
    assert len(uneven) == 1 and "which do not divide among 2 ranks" in uneven[0]
    assert not any(said for found in other["found"].values() for said in found.values())
