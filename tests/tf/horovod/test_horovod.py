"""The horovod API of tensorflow.mpi: each name's behaviour on ranks with different inputs.

docs/horovod.md names the check for each name of the API.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tiers import full

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def checks(script: str) -> list[str]:
    """The names of a script's checks, in order; those of hvd_sessions.py first, if it runs them."""
    text = (HERE / script).read_text()
    found = re.findall(r"^@check\ndef (\w+)", text, re.M)
    return (checks("hvd_sessions.py") if "import hvd_sessions" in text else []) + found


def run(launch: Any, script: str, ranks: int, **env: str) -> list[dict[str, str]]:
    """The errors by rank and check."""
    done = launch(HERE / script, np=ranks, env=env, timeout=400).check()
    for rank, stderr in enumerate(done.stderr):
        said = "this horovod is part of tensorflow.mpi" in stderr
        assert said == (rank == 0 and ranks > 1), stderr[-2000:]
        assert "bitwise identical" not in stderr
    for results in done.results:
        assert list(results) == checks(script)
    return done.results


def wrong(results: list[dict[str, str]]) -> dict[str, str]:
    return {
        f"rank {rank}: {name}": text
        for rank, found in enumerate(results)
        for name, text in found.items()
        if text
    }


@pytest.mark.parametrize("ranks", [2, full(0), full(3), full(4)])
def test_each_collective_check_passes(launch, ranks):
    assert wrong(run(launch, "hvd_collectives.py", ranks)) == {}


@pytest.mark.parametrize(
    ("ranks", "legacy"),
    [(2, False), full(0, False), full(3, False), full(4, False), full(2, True)],
)
def test_each_gradient_check_passes(launch, ranks, legacy):
    env = {"TF_USE_LEGACY_KERAS": "1"} if legacy else {}
    assert wrong(run(launch, "hvd_optimizers.py", ranks, **env)) == {}


def test_the_api_table_names_every_check():
    """docs/horovod.md; the check `each_name_is_documented` tests that every name is there."""
    text = (ROOT / "docs/horovod.md").read_text()
    rows = re.findall(r"^\| .+ \| (`\w+`(?:, `\w+`)*) \|$", text, re.M)
    behind = {name for found in rows for name in re.findall(r"`(\w+)`", found)}
    assert behind == {*checks("hvd_collectives.py"), *checks("hvd_optimizers.py")}


@pytest.mark.full
def test_a_graph_written_by_ranks_opens_in_one_process(launch, tmp_path):
    wrote = launch(HERE / "hvd_meta.py", args=["write", tmp_path]).check()
    assert {"TfMpiAllreduce", "TfMpiBroadcast"} <= set(wrote.results[0]["ops"])
    for env in ({"TF_MPI_ENABLE": None}, {"TF_MPI_ENABLE": "0"}):
        run = launch(HERE / "hvd_meta.py", np=0, args=["read", tmp_path], env=env).check()
        assert run.results == [{"weight": [2.0] * 3}]
