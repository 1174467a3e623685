"""Strings hash the same on all ranks; one process, and averaging off, are not affected."""

from __future__ import annotations

import os
import runpy
import subprocess
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
        [sys.executable, "-m", "hashes"],
    ],
    ids=["script", "options", "same process", "-c", "stdin", "-m"],
)
def test_ranks_hash_strings_equally(launch, words):
    env = {
        "PYTHONHASHSEED": None,
        "PYTHONPATH": os.pathsep.join([str(HASHES.parents[1]), str(HASHES.parent)]),
    }
    run = launch(words, np=2, args=["one", "two words"], env=env).check()
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
def test_without_ranks_strings_hash_as_in_plain_python(launch, ranks, env, words):
    words = [sys.executable, *words, HASHES]
    env = {"PYTHONHASHSEED": None, **env}
    if "-E" in words:  # ignores PYTHONPATH
        words[2:] = ["-c", "print('RESULT', '{\"hash\":', hash('a'), '}')"]
    runs = [launch(words, np=ranks, env=env).check() for _ in range(1 if ranks else 2)]
    found = [rank["hash"] for run in runs for rank in run.results]
    assert len(set(found)) == 2
    for rank in runs[0].results:
        assert rank.get("seed") == env["PYTHONHASHSEED"] and not rank.get("loaded")


def test_different_hashes_are_reported(launch):
    words = [sys.executable, "-c", "import tensorflow"]
    run = launch(words, np=2, env={"PYTHONHASHSEED": "random"}).check()
    assert run.stderr[0].count("string hashes differ between the ranks") == 1
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
def test_the_start_file_decides_like_the_gate(environ):
    ours = runpy.run_path(str(PACKAGE / "python" / "at_start.py"))["ranks_share_work"]
    config = load_config()
    gate = config.gate(environ)
    ranks = gate.launcher.size if gate.on and gate.launcher else 1
    assert ours(environ) == (ranks > 1 and config.get("TF_MPI_SHARD", environ) != "off")


def test_the_wheel_has_the_start_file_at_its_top_level():
    installed = Path(sysconfig.get_path("platlib")) / "tensorflow_mpi.pth"
    text = (PACKAGE / "start" / "tensorflow_mpi.pth").read_text()
    assert installed.read_text() == text
    assert "at_start.py" in text.splitlines()[0]


def test_a_note_that_averaging_is_off_reaches_other_nodes(tmp_path, monkeypatch):
    """mpirun passes TF_MPI_ENABLE only to its own node; the others find the note in the home."""
    config = load_config()
    ours = runpy.run_path(str(PACKAGE / "python" / "at_start.py"))["off_marker"]
    job = {
        **TWO_RANKS,
        "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
        "PMIX_NAMESPACE": "prterun-h1-55@1",
        "XDG_CACHE_HOME": str(tmp_path),
    }
    assert config.gate(job).on
    word = Path(ours(job))
    word.parent.mkdir()
    word.write_text("1\n")
    assert not config.gate(job).on and "another node" in config.gate(job).reason
    assert config.gate({**job, "PMIX_NAMESPACE": "prterun-h1-56@1"}).on
    word.write_text(f"{os.uname().nodename} {os.getpid()}\n")
    assert not config.gate(job).on
    word.write_text(f"{os.uname().nodename} 4194305\n")  # no process has this ID
    assert config.gate(job).on
    word.write_text("another-node 4194305\n")
    assert not config.gate(job).on
    assert config.gate({**job, "TF_MPI_ENABLE": "1"}).on
    one_node = {**job, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    assert config.gate(one_node).on and ours(one_node) == ""
    os.utime(word, (1, 1))  # from an old job of that name
    assert config.gate(job).on


def test_the_note_is_written_and_removed(tmp_path):
    env = {**TWO_RANKS, "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    env |= {"PMIX_NAMESPACE": "job", "XDG_CACHE_HOME": str(tmp_path), "TF_MPI_ENABLE": "0"}
    code = f"import os; print(os.listdir({str(tmp_path / 'tensorflow-mpi')!r}))"
    words = [sys.executable, "-c", code]
    run = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **env})
    assert run.stdout == f"['job-{os.getuid()}.off']\n", run.stderr
    assert not list((tmp_path / "tensorflow-mpi").iterdir())


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_start_file_causes_no_warnings(ranks):
    """Python warns about unclosed files, for example; here a warning is an error."""
    env = {**os.environ, **(TWO_RANKS if ranks == 2 else {}), "TF_MPI_ENABLE": "0"}
    words = [sys.executable, "-X", "dev", "-X", "warn_default_encoding", "-W", "error", "-c", ""]
    run = subprocess.run(words, capture_output=True, text=True, env=env)
    assert run.stderr == ""
