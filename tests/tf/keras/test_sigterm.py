"""TF_MPI_SAVE_ON_SIGTERM: all ranks end after the same step, and rank 0 saves the model."""

from __future__ import annotations

import re

import pytest

STEP = 7
OFF = {"TF_MPI_ENABLE": "0"}
SOON = 20  # seconds, with margin for a busy machine


@pytest.mark.full
@pytest.mark.parametrize(
    "which, name, told",
    [
        ("keras", "model.weights.h5", ""),
        ("keras", "model.weights.h5", "nested"),
        ("tf_keras", "model", ""),
    ],
)
def test_sigterm_on_one_rank_ends_all_after_the_step_and_saves(
    launch, scripts, tmp_path, which, name, told
):
    folder = tmp_path / "saved"
    env = {"TF_MPI_SAVE_ON_SIGTERM": str(folder), "TEST_TOLD": told}
    run = launch(scripts / "sigterm.py", np=2, args=[which], env=env, timeout=120)
    said = "".join(run.stdout)
    assert "NOT ENDED" not in said, run.report()
    assert run.returncode == 128 + 15, run.report()
    assert "SIGTERM: all ranks finish this step" in run.stderr[1], run.report()
    assert f"saved model 'told' after step {STEP}: '{folder / name}'" in run.stderr[0]
    steps = re.findall(r"STEP (\d+) (\w+)", said)
    assert len(steps) == 2 and len(set(steps)) == 1, steps  # no rank has continued
    read = launch(scripts / "sigterm.py", np=1, args=[which, str(folder / name)], env=OFF)
    assert f"READ {STEP} {steps[0][1]} True" in read.stdout[0], read.report()


@pytest.mark.full
@pytest.mark.parametrize("saves", [True, False])
def test_sigterm_to_the_launcher_ends_all_ranks(launch, scripts, tmp_path, saves):
    """Open MPI 5 kills its ranks 0.25 s later, so the model is saved completely or not at all."""
    folder = tmp_path / "saved"
    env = {"TEST_TOLD": "launcher", "TF_MPI_SAVE_ON_SIGTERM": str(folder) if saves else None}
    run = launch(scripts / "sigterm.py", np=2, args=["keras"], env=env, timeout=120)
    said = "".join(run.stdout)
    assert run.returncode != 0 and "NOT ENDED" not in said, run.report()
    assert run.since(1) < SOON
    path = folder / "model.weights.h5"
    print("saved" if path.exists() else "not saved")
    if not path.exists():
        return
    assert saves
    steps = dict(re.findall(r"STEP (\d+) (\w+)", run.stdout[0]))
    read = launch(scripts / "sigterm.py", np=1, args=["keras", str(path)], env=OFF)
    _, step, digest, slots = read.stdout[0].split()
    assert steps[step] == digest and slots == "True", (steps, read.report())


@pytest.mark.full
def test_a_failed_save_gives_another_exit_code(launch, scripts, tmp_path):
    env = {"TEST_TOLD": "full", "TF_MPI_SAVE_ON_SIGTERM": str(tmp_path / "saved")}
    run = launch(scripts / "sigterm.py", np=2, args=["keras"], env=env, timeout=120)
    assert "NOT ENDED" not in "".join(run.stdout), run.report()
    assert run.returncode == 1, run.report()
    assert "SIGTERM: the model could not be saved" in run.stderr[0], run.report()


def test_a_folder_that_cannot_be_created_is_refused_at_the_start(launch, scripts):
    env = {"TF_MPI_SAVE_ON_SIGTERM": "/proc/1/none"}
    run = launch(scripts / "sigterm.py", np=2, args=["keras"], env=env, timeout=120)
    assert run.returncode != 0 and "NOT ENDED" not in "".join(run.stdout), run.report()
    assert "TF_MPI_SAVE_ON_SIGTERM='/proc/1/none' is not accepted" in run.stderr[0], run.report()
