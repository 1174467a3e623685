"""`python -m tensorflow.mpi bench`: its output, and that it ends if ranks do not agree."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launch import LaunchResult

pytestmark = pytest.mark.full

BENCH = [sys.executable, "-m", "tensorflow.mpi", "bench", "--seconds", "0.1", "--timeout", "60"]
WAYS = {"allreduce": {"plain", "transport", "engine"}, "allgather": {"transport", "engine"}}
Launch = Callable[..., LaunchResult]


@pytest.mark.parametrize("collective, ranks, tensors", [("allreduce", 2, 5), ("allgather", 3, 1)])
def test_bench_writes_a_row_per_size_and_algorithm(
    launch: Launch, tmp_path: Path, collective: str, ranks: int, tensors: int
) -> None:
    files = {kind: tmp_path / f"bench.{kind}" for kind in ("json", "csv")}
    args: list[Any] = ["--collective", collective, "--sizes", "48,48k,3m", "--tensors", tensors]
    for kind, path in files.items():
        args += [f"--{kind}", path]
    out = launch([*BENCH], np=ranks, args=args).check().stdout
    assert [len(text.splitlines()) for text in out[1:]] == [0] * (ranks - 1)
    assert len(out[0].splitlines()) == 3 + 3
    report = json.loads(files["json"].read_text())
    assert (report["ranks"], report["local_ranks"], report["nodes"]) == (ranks, ranks, 1)
    assert [row["tensor_bytes"] for row in report["results"]] == [48, 48 << 10, 3 << 20]
    factor = (ranks - 1) / ranks * (2 if collective == "allreduce" else 1)
    for row in report["results"]:
        assert row["bytes"] == row["tensor_bytes"] * tensors
        assert {way for way in row if isinstance(row[way], dict)} == WAYS[collective]
        for way in WAYS[collective]:
            one = row[way]
            assert 0 < one["min"] <= one["median"] <= one["max"]
            assert len(one["samples"]) >= 3
            assert one["algbw"] == pytest.approx(row["bytes"] / one["median"])
            assert one["busbw"] == pytest.approx(one["algbw"] * factor)
    with open(files["csv"], newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 3 * len(WAYS[collective])
    assert {line["way"] for line in lines} == WAYS[collective]


def test_bench_ends_if_the_ranks_measure_different_things(launch: Launch) -> None:
    command = " ".join(BENCH) + " --timeout 2 --sizes $((4 + 4 * OMPI_COMM_WORLD_RANK))"
    result = launch(["sh", "-c", f"exec {command}"], np=2, timeout=60)
    assert result.returncode != 0
    assert "runs another case" in result.stderr[0] + result.stderr[1]
