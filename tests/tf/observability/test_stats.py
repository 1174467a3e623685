"""TF_MPI_STATS=1: the report that rank 0 prints at the end."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from trace_events import Trace

from launch import LaunchResult

STEPS, LATE_MS = 10, 50


def milliseconds(text: str) -> float:
    number, unit = text.split()
    return float(number) / (1000 if unit == "us" else 1)


def test_the_report_matches_the_training(
    launch: Callable[..., LaunchResult], scripts: Path, tmp_path: Path
) -> None:
    """Two nodes in name, so that clocks are compared."""
    path = tmp_path / "trace.json"
    env = {"TF_MPI_STATS": "1", "TF_MPI_TIMELINE": str(path), "TF_MPI_TOPOLOGY": "2x1"}
    (tmp_path / "sample").write_bytes(bytes(1 << 18))
    args = [str(STEPS), "late", str(tmp_path / "sample")]
    run = launch(scripts / "timeline.py", args=args, env=env).check()
    trace = Trace(path)
    assert trace.share_of_responses_at_one_time() > 0.9
    for rank, own in enumerate(run.results):  # for 8 and 4 batches
        waits = trace.complete[rank]["input 2"]
        assert [wait["name"] for wait in waits] == ["wait for input"] * 12
        assert 0 < sum(wait["dur"] for wait in waits) * 1e-6 < own["waited"]
    assert "communication of" not in run.stderr[1] + run.stdout[0]
    text = run.stderr[0]
    lines = dict(re.findall(r"^  (\S[^#\n]*?\S?) {2,}(\S.*)$", text, re.MULTILINE))
    steps = int(lines["steps"].split()[0])
    assert 2 * STEPS - 1 <= steps <= 2 * STEPS
    megabytes = float(lines["averaged"].split()[0])
    sent = STEPS * run.results[0]["bytes"] / 2**20
    assert sent <= megabytes <= sent * 1.2  # and the initial values once
    rounds, per_step = lines["rounds"].removesuffix(" per step").split(", ")
    assert 0 < int(rounds) <= 14 * STEPS + 20
    assert abs(int(rounds) / steps - float(per_step)) < 0.1
    assert lines["slowest"] == "rank 1"
    rows = re.findall(
        r"^ +(\d) +(\d+)% +([\d.]+ .s) +([\d.]+ .s) +([\d.]+ .s) +([\d.]+ .s)$", text, re.MULTILINE
    )
    assert [row[0] for row in rows] == ["0", "1"]
    waits = [milliseconds(row[3]) for row in rows]
    assert waits[0] > waits[1]
    outstanding = [milliseconds(row[4]) + milliseconds(row[5]) for row in rows]
    assert outstanding[0] > LATE_MS / 4  # includes the small model's steps
    assert milliseconds(rows[1][2]) > 1
    # Half of the first pipeline, all of the second, which has a filter: a sample reads 256 KB.
    rows = re.findall(r"^ +(\d) +(\d+) +(\d+) +([\d.]+) s +([\d.]+) MB$", text, re.MULTILINE)
    assert [row[:3] for row in rows] == [(str(rank), "96", "64") for rank in range(2)]
    for row, own in zip(rows, run.results):
        assert 0 < float(row[3]) < own["waited"]
        assert 96 / 4 <= float(row[4]) < 100 / 4


@pytest.mark.full
def test_the_report_counts_samples_of_the_input(
    launch: Callable[..., LaunchResult], scripts: Path
) -> None:
    run = launch(scripts / "input_stats.py", env={"TF_MPI_STATS": "1"}).check()
    first, second = run.results
    for name in ("maps", "predict", "python"):
        assert first[name] == second[name] == [32, 32]
    for name in ("wall", "arrays"):
        assert first[name] == second[name] == [64, 32]
    assert first["sent"] == [64, 32] and second["sent"] == [0, 32]
    for made, used in zip(first["odd"], second["odd"]):
        assert made + used == 61
    assert first["odd"][0] == first["odd"][1]
