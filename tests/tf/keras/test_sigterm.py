"""TF_MPI_SAVE_ON_SIGTERM: all ranks end after one step, and rank 0 saves the model."""

from __future__ import annotations

import re

import pytest

STEP = 7


@pytest.mark.full
@pytest.mark.parametrize("which, name", [("keras", "model.weights.h5"), ("tf_keras", "model")])
def test_a_rank_that_is_told_to_end(launch, scripts, tmp_path, which, name):
    folder = tmp_path / "saved"
    env = {"TF_MPI_SAVE_ON_SIGTERM": str(folder)}
    run = launch(scripts / "sigterm.py", np=2, args=[which], env=env, timeout=120)
    said = "".join(run.stdout)
    assert "NOT ENDED" not in said, run.report()
    assert run.returncode == 128 + 15, run.report()
    assert "SIGTERM: all ranks end this step" in run.stderr[1], run.report()
    assert f"saved model 'told' after step {STEP}: '{folder / name}'" in run.stderr[0]
    steps = re.findall(r"STEP (\d+) (\w+)", said)
    assert len(steps) == 2 and len(set(steps)) == 1, steps  # none has gone on
    off = {"TF_MPI_ENABLE": "0"}
    read = launch(scripts / "sigterm.py", np=1, args=[which, str(folder / name)], env=off)
    assert f"READ {STEP} {steps[0][1]} True" in read.stdout[0], read.report()
