"""tests/launch.py: output per rank, return codes, and a deadline that leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import launch as launcher
from launch import LaunchError, LaunchTimeout, WordOfInput, launch


@pytest.fixture(name="script")
def script_fixture(tmp_path: Path):
    """Writes a script and returns its path."""

    def write(source: str) -> Path:
        path = tmp_path / "script.py"
        path.write_text(
            "import json, os, subprocess, sys, time\n"
            "rank = int(os.environ.get('OMPI_COMM_WORLD_RANK', os.environ.get('PMI_RANK', 0)))\n"
            + textwrap.dedent(source)
        )
        return path

    return write


HANG = """
    print("rank", rank, "is up")
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    open(sys.argv[1] + f"/{rank}", "w").write(f"{os.getpid()} {child.pid}")
    def the_hanging_function():
        time.sleep(600)
    the_hanging_function()
"""


def hung_pids(directory: Path, ranks: int) -> list[int]:
    return [
        int(pid) for rank in range(ranks) for pid in (directory / str(rank)).read_text().split()
    ]


def assert_gone(pids: list[int]) -> None:
    assert pids
    assert [pid for pid in pids if launcher._alive(pid)] == []


def test_output_is_separate_per_rank(script):
    path = script("""
        print("out", rank)
        print("err", rank, file=sys.stderr)
        print("RESULT " + json.dumps({"rank": rank, "args": sys.argv[1:]}))
    """)
    run = launch(path, np=3, args=["a b", "$c"], timeout=60).check()
    assert run.returncode == 0
    assert [text.splitlines()[0] for text in run.stdout] == ["out 0", "out 1", "out 2"]
    assert [text.strip() for text in run.stderr] == ["err 0", "err 1", "err 2"]
    assert run.results == [{"rank": rank, "args": ["a b", "$c"]} for rank in range(3)]
    assert 0 < run.wall < 60


def test_searching_the_output_for_a_word_of_the_input_is_an_error(script):
    path = script("""
        print("out of", sys.argv[1])
        print("not shared: a line that the test means", file=sys.stderr)
        raise SystemExit(0)
    """)
    run = launch(path, np=0, args=["/tmp/not-shared"], timeout=60)
    assert "out of /tmp" in run.stdout[0] and run.stderr[0].count("not shared: a line\n") == 0
    for text, word in ((run.stdout[0], "shared"), (run.stderr[0], "a line that the test means")):
        with pytest.raises(WordOfInput, match="occurs in the run's own input"):
            assert word in text
        with pytest.raises(WordOfInput):
            text.count(word)
        with pytest.raises(WordOfInput):
            assert word in (text + text).splitlines()[0]


def test_zero_ranks_run_without_a_launcher(script, monkeypatch):
    monkeypatch.setenv("PMIX_RANK", "5")
    path = script("""
        seen = [name for name in os.environ if name.startswith(("OMPI_", "PMI"))]
        extra = os.environ["EXTRA"]
        print("RESULT " + json.dumps({"seen": seen, "extra": extra, "home": "HOME" in os.environ}))
    """)
    run = launch(path, np=0, env={"EXTRA": "1", "HOME": None}, timeout=60).check()
    assert run.results == [{"seen": [], "extra": "1", "home": False}]


def test_a_launch_leaves_no_temporary_files(script):
    """Each run has its own folder, which is removed with it, even if the launcher is killed."""
    run = launch(script("print(os.environ['TMPDIR'], os.listdir(os.environ['TMPDIR']))"), np=2)
    (folder, _, listed), (same, _, _) = (text.partition(" ") for text in run.check().stdout)
    assert folder == same and "launcher" in listed and "ompi" in listed
    assert not Path(folder).exists()


def test_a_command_line_instead_of_a_script(tmp_path):
    run = launch([sys.executable, "-c", "print('x')"], np=2, cwd=tmp_path, timeout=60).check()
    assert run.stdout == ["x\n", "x\n"]


def test_a_failing_rank_fails_the_run(script):
    run = launch(script("sys.exit(7 if rank == 1 else 0)"), np=2, timeout=60)
    assert run.returncode != 0
    with pytest.raises(LaunchError, match="return code"):
        run.check()


def test_a_missing_result_is_named(script):
    run = launch(script("print('RESULT {}' if rank == 0 else 'nothing')"), np=2, timeout=60)
    with pytest.raises(LaunchError, match="rank 1 printed no RESULT"):
        _ = run.results


@pytest.mark.parametrize("np", [0, 2])
def test_a_hang_is_killed_and_every_stack_is_shown(script, tmp_path, capfd, np):
    start = time.monotonic()
    with pytest.raises(LaunchTimeout) as caught:
        launch(script(HANG), np=np, args=[tmp_path], timeout=3)
    assert time.monotonic() - start < 40
    ranks = max(np, 1)
    assert len(caught.value.stacks) == ranks
    for rank, stack in enumerate(caught.value.stacks):
        assert "the_hanging_function" in stack
        assert f"--- rank {rank} stacks" in str(caught.value)
        assert f"rank {rank} is up" in str(caught.value)
    assert str(caught.value) in capfd.readouterr().err
    assert_gone(hung_pids(tmp_path, ranks))


def test_stacks_are_shown_without_py_spy(script, tmp_path, monkeypatch):
    monkeypatch.setattr(launcher, "_py_spy", lambda alive, texts: list(texts))
    with pytest.raises(LaunchTimeout) as caught:
        launch(script(HANG), np=2, args=[tmp_path], timeout=3)
    assert ["the_hanging_function" in stack for stack in caught.value.stacks] == [True, True]
    assert_gone(hung_pids(tmp_path, 2))


def test_a_rank_that_ended_before_the_deadline_is_named(script):
    with pytest.raises(LaunchTimeout) as caught:
        launch(script("time.sleep(600 if rank == 0 else 0)"), np=2, timeout=3)
    assert "had ended" in caught.value.stacks[1]
    assert "script.py" in caught.value.stacks[0]


def test_a_launcher_that_outlives_its_ranks_is_killed_and_reported(
    script, tmp_path, monkeypatch, capfd
):
    fake = tmp_path / "mpirun"
    fake.write_text('until [ "$1" = sh ]; do shift; done; "$@"; sleep 600\n')
    monkeypatch.setattr(launcher, "_mpirun", lambda: ["sh", str(fake)])
    monkeypatch.setattr(launcher, "_oversubscribe", lambda: [])
    run = launch(script("print('is up')"), np=1, timeout=3)
    assert run.returncode != 0 and run.stdout == ["is up\n"]
    assert "the launcher outlived its ranks" in capfd.readouterr().err
    with pytest.raises(LaunchError, match="return code"):
        run.check()


def test_a_rank_that_ignores_signals_is_killed(script, tmp_path):
    deaf = "import signal\nfor number in (15, 18, 6): signal.signal(number, signal.SIG_IGN)\n"
    with pytest.raises(LaunchTimeout):
        launch(script(deaf + textwrap.dedent(HANG)), np=2, args=[tmp_path], timeout=3)
    assert_gone(hung_pids(tmp_path, 2))


def test_a_process_left_behind_by_a_successful_run_is_killed(script, tmp_path):
    path = script("""
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        open(sys.argv[1] + f"/{rank}", "w").write(str(child.pid))
    """)
    launch(path, np=2, args=[tmp_path], timeout=60).check()
    assert_gone(hung_pids(tmp_path, 2))


def test_ranks_end_when_the_test_process_is_killed(script, tmp_path):
    code = "import sys, launch; launch.launch(sys.argv[1], np=2, args=[sys.argv[2]], timeout=600)"
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(script(HANG)), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(Path(launcher.__file__).parent)},
    )
    deadline = time.monotonic() + 30
    while not all((tmp_path / str(rank)).exists() for rank in range(2)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(0.5)
    ranks = [int((tmp_path / str(rank)).read_text().split()[0]) for rank in range(2)]
    children = [int((tmp_path / str(rank)).read_text().split()[1]) for rank in range(2)]
    parent.kill()
    parent.wait()
    while any(launcher._alive(pid) for pid in ranks) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in children:  # in their own sessions, so mpirun does not know them
        os.kill(pid, signal.SIGKILL)
    assert_gone(ranks)
