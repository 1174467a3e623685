"""TF_MPI_FAULT=shrink: custom loops continue when ranks are killed."""

from __future__ import annotations

import json
import re

import pytest

from tiers import full

ULFM = ("--with-ft", "ulfm")
SHRINK = {"TF_MPI_FAULT": "shrink"}


def survivors(run):
    """The results of the ranks that survived."""
    lines = "".join(run.stdout).splitlines()
    return [json.loads(line[len("RESULT ") :]) for line in lines if line.startswith("RESULT ")]


@pytest.mark.parametrize(
    "how, fates",
    [
        ("function", ["0:20", "2:40"]),
        full("eager", ["1:10", "2:11", "3:30"]),
        full("compiled", ["0:15", "1:15"]),
        full("function", ["3:1"]),
        full("function", []),
    ],
)
def test_remaining_ranks_train_on_with_equal_results(launch, scripts, tmp_path, how, fates):
    run = launch(
        scripts / "shrink.py",
        np=4,
        args=[how, *fates],
        env=SHRINK | {"TEST_FOLDER": str(tmp_path)},
        mpirun_args=ULFM,
        timeout=180,
    )
    left = survivors(run)
    assert len(left) == 4 - len(fates), run.report()
    assert run.returncode == 0, run.report()
    assert len({one["digest"] for one in left}) == 1, left
    assert sorted(one["rank"] for one in left) == list(range(len(left)))
    for one in left:
        assert one["size"] == one["total"] == len(left)
        assert one["sizes"][0] == 4 and one["sizes"][-1] == len(left)
        assert one["sizes"] == sorted(one["sizes"], reverse=True)
        assert one["loss"] < 30, left  # 140 before the first step
        assert one["saved"]  # by the first remaining rank
    if not fates:
        return
    died = re.findall(r"\branks? ([\d, and]+) of 4 (?:has|have) died", "".join(run.stderr))
    named = {number for text in died for number in re.findall(r"\d", text)}
    goes_on = r"ranks? continues?, and averages are now over these. All of them have all earlier"
    assert re.search(goes_on, "".join(run.stderr)), run.report()
    # The launcher's numbers.
    assert named == {fate.partition(":")[0] for fate in fates}, run.report()


@pytest.mark.full
def test_remaining_ranks_that_wait_for_one_another_end_at_once(launch, scripts, tmp_path):
    args = ["function", "0:20", "apart"]
    env = SHRINK | {"TEST_FOLDER": str(tmp_path)}
    run = launch(scripts / "shrink.py", 3, args=args, env=env, mpirun_args=ULFM, timeout=60)
    assert not survivors(run)
    assert "rank 0 waits for rank 1" in "".join(run.stderr), run.report()


@pytest.mark.full
def test_fit_ends_with_the_reason_on_the_remaining_ranks(launch, scripts):
    run = launch(scripts / "shrink_fit.py", np=3, env=SHRINK, mpirun_args=ULFM, timeout=120)
    assert not survivors(run)
    for rank in (0, 2):
        assert "rank 1 of 3 has died, and fit() of model" in run.stderr[rank], run.report()
        assert "cannot continue with fewer ranks" in run.stderr[rank]
