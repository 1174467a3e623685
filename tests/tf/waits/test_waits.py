"""No rank waits silently or forever, at the start or at the end."""

from __future__ import annotations

import re
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from launch import begin, kill
from tiers import full

STALL = {"TF_MPI_STALL_WARNING": "1", "TF_MPI_STALL_TIMEOUT": "4"}
ENDS_WITH_IT = 8  # seconds: it checks every 2
SOON = 20  # seconds for STALL's wait and the end of the job, with margin for a busy machine


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("tensorflow.mpi rank")]


def test_different_settings_are_named(launch, scripts):
    """Including those that would make the start hang; not those that may differ or mean the
    same."""
    run = launch(scripts / "waits.py", args=["settings"], timeout=90)
    assert run.returncode != 0
    (text,) = {text for text in map(last_line, run.stderr) if text.startswith("ImportError: ")}
    for name, zero, one in [
        ("TF_MPI_SPARSE", "auto", "dense"),
        ("TF_MPI_TOPOLOGY", "auto", "flat"),
        ("TF_ENABLE_ONEDNN_OPTS", "unset", "0"),
        ("XLA_FLAGS", "--xla_cpu_enable_fast_math=false", "--xla_cpu_enable_fast_math=true"),
    ]:
        assert f"{name}: rank 0 has '{zero}', rank 1 has '{one}'" in text
        assert f" -x {name}" in text
    assert text.count(": rank 0 has '") == 4, text
    assert run.wall < SOON


def last_line(text: str) -> str:
    return (text.splitlines() or [""])[-1]


@pytest.mark.parametrize(
    "mode, said",
    [
        (
            "off",
            "was started with TF_MPI_ENABLE=0; use the same value on all ranks; this rank ends",
        ),
        full("off later", "runs TensorFlow without averaging: TF_MPI_ENABLE=0 there"),
        full("late", "has not imported tensorflow); this rank ends"),
        ("idle", "is idle); this rank ends"),
        full("stopped", "is stopped, for example by SIGSTOP); this rank ends"),
    ],
)
def test_a_rank_says_whom_it_waits_for_and_the_wait_ends(launch, scripts, mode, said):
    run = launch(scripts / "waits.py", args=[mode], env=STALL, timeout=90)
    assert run.returncode != 0
    lines = lines_of(run.stderr[0])
    assert re.search(rf"rank 1 \(process \d+, 'python\S* waits\.py {mode}'\)", lines[-1]), lines
    assert said in lines[-1]
    if mode == "off":
        assert run.wall < SOON
        return
    # On a busy machine the average before it may have waited, too ("1.0 s"), and the other rank may
    # still have been at work.
    waits = [line for line in lines if re.search(r"has waited [1-4] s for", line)]
    first = next(line for line in waits if "is at work" not in line)
    assert first.endswith("; this rank ends after TF_MPI_STALL_TIMEOUT, 4 s")
    if mode in ("idle", "stopped"):
        assert run.since(1) < SOON
    if mode == "idle":
        where = r"rank 0 has waited .* for this rank's script to end; it is at waits\.py:\d+$"
        assert re.search(where, run.stderr[1].strip()), run.stderr[1]


@pytest.mark.full
def test_a_rank_that_ended_before_the_start_is_noticed(launch, scripts):
    run = launch(scripts / "waits.py", args=["gone"], timeout=90)
    assert run.returncode != 0
    assert run.wall < SOON
    assert "rank 1 ended before reaching this point" in run.stderr[0] + run.launcher, run.report()


@pytest.mark.full
def test_ranks_wait_for_one_that_works_after_its_last_step(launch, scripts):
    run = launch(scripts / "waits.py", args=["work"], env=STALL, timeout=90).check()
    assert [text.splitlines()[0] for text in run.stdout] == ["TOTAL 3.0"] * 2
    lines = [line for line in lines_of(run.stderr[0]) if "its script has ended" in line]
    assert lines and all(line.endswith("is at work)") for line in lines)


@pytest.mark.parametrize(
    "wrapped, ends",
    [
        ([], True),
        full(["bash", "-c", '"$@"; exit', "bash"], True),  # the shell stays and belongs to the rank
        full(["nohup"], False),
    ],
)
def test_ranks_end_with_their_launcher(scripts, tmp_path, wrapped, ends):
    """The launcher is killed, so it cannot end them or forward their output."""
    words = [*wrapped, sys.executable, str(scripts / "waits.py"), "orphans"]
    marker = uuid.uuid4().hex
    launcher, _ = begin(words, 2, tmp_path, marker)
    try:
        both = [tmp_path / "0.out", tmp_path / "1.out"]
        wait_until(lambda: all(out.exists() and "AT " in out.read_text() for out in both), 90)
        ranks = [int((tmp_path / f"{rank}.pid").read_text()) for rank in range(2)]
        launcher.kill()
        launcher.wait()
        if ends:
            wait_until(lambda: not any(map(is_running, ranks)), ENDS_WITH_IT)
        else:
            time.sleep(ENDS_WITH_IT)
            assert all(map(is_running, ranks))
        line = r"(rank \d)/2: prterun \(process \d+\), which started the ranks, was killed"
        assert re.findall(line, (tmp_path / "launcher").read_text()) == ["rank 0"] * ends
    finally:
        kill(launcher, marker)


def is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
