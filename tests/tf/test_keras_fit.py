"""Keras's fit on 2 and 3 ranks: the weights, losses and metrics of one process."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from compare import decode

from launch import launch as start

FLAVOURS = ("keras", "tf_keras", "tf_keras-legacy")
TOLERANCE = 1e-5


@functools.cache
def matrix(script: str, flavour: str, np_: int) -> list[dict[str, Any]]:
    """What every rank (0 ranks: one plain process) printed."""
    return start(script, np=np_, args=[flavour], timeout=600).check().results


def distance(ours: Any, theirs: Any) -> float:
    pairs = zip(ours["weights"], theirs["weights"], strict=True)
    return max(float(np.abs(decode(a) - decode(b)).max()) for a, b in pairs)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_matrix_equals_one_process(scripts, flavour, ranks):
    script = str(scripts / "keras_fit_matrix.py")
    (alone,) = matrix(script, flavour, 0)
    everyone = matrix(script, flavour, ranks)
    assert alone.pop("registered", {"gate": 1}) == {"gate": 1}
    far = {}
    for rank, together in enumerate(everyone):
        assert together.pop("registered", {"gate": ranks}) == {"gate": ranks}
        assert together.keys() == alone.keys()
        for name, theirs in alone.items():
            ours = together[name]
            assert ours["weights"] == everyone[0][name]["weights"], f"rank {rank} differs: {name}"
            if not (apart := distance(ours, theirs)) <= TOLERANCE:
                far[f"{name}, rank {rank}"] = apart
            for logs in ("loss", "mae"):
                assert np.allclose(ours[logs], theirs[logs], rtol=1e-5), (name, logs)
            assert ours["iterations"] == theirs["iterations"]
    assert not far, f"further than {TOLERANCE} from one process: {far}"
