"""Strings hash alike on all ranks; one process, and averaging that is off, are left as they are."""

from __future__ import annotations

import runpy
import sys
import sysconfig
from pathlib import Path

import pytest

from extras import load_config

HASHES = Path(__file__).parent / "hashes.py"
PACKAGE = Path(__file__).resolve().parents[3] / "tensorflow_patches"


@pytest.mark.parametrize(
    "words",
    [
        [sys.executable, HASHES],
        [sys.executable, "-O", "-u", HASHES],
        ["sh", "-c", 'SHELL_PID=$$ exec "$0" "$@"', sys.executable, HASHES],
        [sys.executable, "-c", f"import runpy; runpy.run_path({str(HASHES)!r}, None, '__main__')"],
        ["sh", "-c", '"$0" < "$1"', sys.executable, HASHES],
        [sys.executable, "-m", "draws.hashes"],
    ],
    ids=["script", "options", "same process", "-c", "stdin", "-m"],
)
def test_ranks_hash_alike(launch, words):
    run = launch(words, np=2, args=["one", "two words"], env={"PYTHONHASHSEED": None}).check()
    first, second = run.results
    assert first == second
    assert first["argv"][-2:] == ["one", "two words"] or "<" in str(words)
    assert first["optimize"] == ("-O" in words)
    assert first["pid"] and first["prefix"] == sys.prefix and not first["loaded"]


@pytest.mark.parametrize(
    "ranks, env, words",
    [
        (0, {}, []),
        (2, {"TF_MPI_ENABLE": "0"}, []),
        (2, {"TF_MPI_SHARD": "off"}, []),
        (2, {"PYTHONHASHSEED": "random"}, []),
        (2, {}, ["-E"]),
    ],
)
def test_and_else_as_python_does(launch, ranks, env, words):
    words = [sys.executable, *words, HASHES]
    env = {"PYTHONHASHSEED": None, **env}
    if "-E" in words:  # nor PYTHONPATH
        words[2:] = ["-c", "print('RESULT', '{\"hash\":', hash('a'), '}')"]
    runs = [launch(words, np=ranks, env=env).check() for _ in range(1 if ranks else 2)]
    found = [rank["hash"] for run in runs for rank in run.results]
    assert len(set(found)) == 2
    for rank in runs[0].results:
        assert rank.get("seed") == env["PYTHONHASHSEED"] and not rank.get("loaded")


def test_different_hashes_are_said(launch):
    words = [sys.executable, "-c", "import tensorflow"]
    run = launch(words, np=2, env={"PYTHONHASHSEED": "random"}).check()
    assert run.stderr[0].count("strings have other hashes on each rank") == 1
    assert "strings" not in run.stderr[1]


TWO_RANKS = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}
ENVIRONMENTS = [
    {},
    {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
    TWO_RANKS,
    {"PMI_SIZE": "2", "PMI_RANK": "1"},
    {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"},
    {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "TF_MPI_ENABLE": "1"},
    {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "PMIX_RANK": "1"},
    {**TWO_RANKS, "TF_MPI_ENABLE": "0"},
    {**TWO_RANKS, "TF_MPI_ENABLE": "1"},
    {**TWO_RANKS, "TF_MPI_SHARD": "off"},
    {**TWO_RANKS, "_TF_MPI_STARTED_BY": "1"},
    {**TWO_RANKS, "_TF_MPI_STARTED_BY": "1 job", "PMIX_NAMESPACE": "job"},
    {**TWO_RANKS, "_TF_MPI_STARTED_BY": "1 job", "PMIX_NAMESPACE": "another"},
    {**TWO_RANKS, "_TF_MPI_STARTED_BY": "1 job"},
]


@pytest.mark.parametrize("environ", ENVIRONMENTS)
def test_it_decides_as_the_gate_does(environ):
    ours = runpy.run_path(str(PACKAGE / "python" / "at_start.py"))["ranks_share_work"]
    config = load_config()
    gate = config.gate(environ)
    ranks = gate.launcher.size if gate.on and gate.launcher else 1
    assert ours(environ) == (ranks > 1 and config.get("TF_MPI_SHARD", environ) != "off")


def test_the_wheel_has_it_at_its_top():
    installed = Path(sysconfig.get_path("platlib")) / "tensorflow_mpi.pth"
    text = (PACKAGE / "start" / "tensorflow_mpi.pth").read_text()
    assert installed.read_text() == text
    assert len(text.splitlines()) == 1
