"""Keras's fit on 2 and 3 ranks gives the weights, losses and metrics of one process."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compare import decode

from launch import launch as start
from reference import reference
from tiers import full

TOLERANCE = 1e-5


@functools.cache
def matrix(
    script: str, flavour: str, np_: int, cases: tuple[str, ...] = ()
) -> list[dict[str, Any]]:
    """The output of every rank (0 ranks: one plain process), for all cases or those named."""
    args = [flavour, *cases]
    if np_ == 0:
        return reference(Path(script), args=args)
    return start(script, np=np_, args=args, timeout=600, pooled=True).check().results


def distance(ours: Any, theirs: Any) -> float:
    pairs = zip(ours["weights"], theirs["weights"], strict=True)
    return max(float(np.abs(decode(a) - decode(b)).max()) for a, b in pairs)


# The quick tier has one case of each kind: compiled steps, clipping with an average of the weights,
# and accumulation in a slot. For tf_keras it has what differs there: clipping, and legacy
# optimizers (some have Apply ops) and their loss scale.
QUICK = {
    "keras": ("adam jit", "adamw global_clipnorm ema", "accumulation clipnorm"),
    "tf_keras": ("clipnorm",),
    "tf_keras-legacy": ("adam", "loss scale"),
}


@pytest.mark.parametrize(
    "flavour, ranks, cases",
    [
        *((flavour, 2, cases) for flavour, cases in QUICK.items()),
        *(full(flavour, ranks, ()) for ranks in (2, 3) for flavour in QUICK),
    ],
)
def test_matrix_equals_one_process(scripts, flavour, ranks, cases):
    """For these cases, or all."""
    script = str(scripts / "keras_fit_matrix.py")
    (alone,) = matrix(script, flavour, 0, cases)
    assert alone["ranks"] == 1
    cases = [name for name in alone if name != "ranks"]
    if ranks == 3:  # each optimizer once, as a function or compiled, because two cores are slow
        cases = [name for at, name in enumerate(cases) if at % 4 in (0, 3)]
    everyone = matrix(script, flavour, ranks, tuple(cases))
    far = {}
    for rank, together in enumerate(everyone):
        assert together.keys() == {*cases, "ranks"}
        assert together["ranks"] == ranks
        for name in cases:
            ours, theirs = together[name], alone[name]
            assert ours["weights"] == everyone[0][name]["weights"], f"rank {rank} differs: {name}"
            if not (apart := distance(ours, theirs)) <= TOLERANCE:
                far[f"{name}, rank {rank}"] = apart
            for logs in ("loss", "mae"):
                assert np.allclose(ours[logs], theirs[logs], rtol=1e-5), (name, logs)
            assert ours["iterations"] == theirs["iterations"]
    assert not far, f"further than {TOLERANCE} from one process: {far}"


@pytest.mark.full
def test_the_matrix_fails_if_nothing_is_averaged(scripts):
    """The control, with the fast cases. With a loss scale, script_gradients.py would average."""
    script, cases = str(scripts / "keras_fit_matrix.py"), ["sgd momentum", "adam"]
    (alone,) = matrix(script, "keras", 0)
    broken = {"TEST_BREAK_AVERAGE": "1"}
    run = start(script, np=2, args=["keras", *cases], env=broken, timeout=300).check()
    for name in cases:
        first, second = (rank[name] for rank in run.results)
        assert distance(first, second) > 100 * TOLERANCE
        for rank in (first, second):
            assert distance(rank, alone[name]) > 100 * TOLERANCE


OFF = """
import json, os, sys
import numpy as np, keras, tensorflow as tf
keras.utils.set_random_seed(3)
x = np.random.default_rng(0).normal(size=(50, 4)).astype("f")
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)])
model.compile("adam", "mse")
history = model.fit(x, x[:, :2], batch_size=8, epochs=2, verbose=0)
model.save(f"{sys.argv[1]}/{os.getpid()}.keras")
weights = [w.tobytes().hex() for w in model.get_weights()]
print("RESULT " + json.dumps({"weights": weights, "history": str(history.history)}))
"""


@pytest.mark.full
def test_with_averaging_off_ranks_behave_like_stock_processes(scripts, tmp_path):
    """With TF_MPI_ENABLE=0 two ranks act like two processes: each trains on all data and saves."""
    script = tmp_path / "off.py"
    script.write_text(OFF)
    alone = start(script, np=0, args=[str(tmp_path)]).check().results
    off = start(script, np=2, args=[str(tmp_path)], env={"TF_MPI_ENABLE": "0"}).check()
    assert off.results == [alone[0], alone[0]]
    assert len(list(tmp_path.glob("*.keras"))) == 3
    assert off.launcher == "" and "tensorflow.mpi" not in "".join(off.stderr)
