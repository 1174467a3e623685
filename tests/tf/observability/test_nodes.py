"""doctor --nodes: its report about nodes, including those that do not answer."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from extras import load_config

PYTHON = Path(__file__).parents[3] / "tensorflow_patches" / "python"
NODES = [sys.executable, "-m", "tensorflow.mpi", "doctor", "--nodes"]


@pytest.fixture(name="report", scope="module")
def report_fixture() -> ModuleType:
    path = PYTHON / "_src" / "observability" / "node_report.py"
    spec = importlib.util.spec_from_file_location("node_report", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["node_report"] = module  # dataclasses look it up there
    spec.loader.exec_module(module)
    return module


def facts(node: str, **other: Any) -> dict[str, Any]:
    return {
        "node": node,
        "wheel": "2.21.0+mpi.1 a",
        "python": "3.11.2",
        "mpi": "/lib/libmpi.so.40",
        "cores": 8,
        "load": 0.1,
        "node_cores": 8,
        "memory": 2**36,
        "memory_free": 2**35,
        "shm_free": 2**33,
        "shm_fault": "",
        "figures": {"memory GB/s": 20.0, "exp M/s": 900.0},
    } | other


def met(**other: Any) -> dict[str, Any]:
    return {"fault": "", "clock": 0.001, "GB/s": 3.0, "transport": "MPI (Open MPI v5)"} | other


def test_slurms_node_names_are_expanded(report):
    expand = report.expand
    assert expand("node[08-10,2],login") == ["node08", "node09", "node10", "node2", "login"]
    assert expand("a[1-2]b[3-4]") == ["a1b3", "a1b4", "a2b3", "a2b4"]
    assert expand("") == []


def test_a_healthy_cluster_has_no_faults(report):
    found = {0: facts("a"), 1: facts("a"), 2: facts("b")}
    findings = report.judge(found, 3, ["a", "b"])
    report.judge_together(findings, found, dict.fromkeys(found, met()), 3)
    assert findings.faults == {} and findings.failing == []
    assert report.exclusion(findings.failing) == ""
    assert [line.split()[:2] for line in findings.lines[1:3]] == [["a", "2"], ["b", "1"]]
    assert findings.lines[-1].startswith(
        "allreduce of 4 MB per rank over 3 ranks, MPI (Open MPI v5): 3 GB/s, result correct"
    )


def test_nodes_that_do_not_answer_are_named_if_known(report):
    found = {0: facts("a"), 1: facts("a")}
    findings = report.judge(found, 4, ["a", "b", "c"])
    assert report.exclusion(findings.failing) == "b,c\n"
    assert any("ranks 2 and 3 did not answer" in line for line in findings.text())
    nameless = report.judge(found, 4, [])
    assert nameless.failing == []
    assert "pass all nodes with --hosts" in "\n".join(nameless.text())


def test_a_node_that_differs_from_the_others_is_a_fault(report):
    found = {rank: facts(f"n{rank}") for rank in range(4)}
    found[1] = facts("n1", wheel="2.21.0+mpi.1 b")
    found[2] = facts("n2", shm_fault="/dev/shm has 3 MB free, but up to 64 MB is needed")
    found[3] = facts("n3", figures={"memory GB/s": 8.0, "exp M/s": 900.0})
    findings = report.judge(found, 4, [])
    assert report.exclusion(findings.failing) == "n1,n2,n3\n"
    text = "\n".join(findings.text())
    assert (
        "FAULT node n1: rank 1 has wheel '2.21.0+mpi.1 b', but most ranks have '2.21.0+mpi.1 a'"
        in text
    )
    assert "FAULT node n2: /dev/shm has 3 MB free" in text
    assert "FAULT node n3: rank 3 is slow: 8 memory GB/s, 40% of the median" in text
    assert "slowest: rank 3 on node n3: 8 memory GB/s, 40% of the median" in text


def test_a_busy_node_is_not_a_fault(report):
    slow = {"memory GB/s": 8.0, "exp M/s": 900.0}
    found = {rank: facts(f"n{rank}") for rank in range(3)} | {3: facts("n3", figures=slow, load=9)}
    findings = report.judge(found, 4, [])
    assert findings.failing == []
    assert "but the load of its 8 cores was already 9" in "\n".join(findings.text())


def test_an_allreduce_that_does_not_end_names_the_missing_ranks(report):
    found = {rank: facts(f"n{rank}") for rank in range(3)}
    findings = report.judge(found, 3, [])
    together = {0: met(), 1: met(clock=-2.5)}
    report.judge_together(findings, found, together, 3)
    text = "\n".join(findings.text())
    assert "FAULT: rank 2 did not finish the allreduce, on n2" in text
    assert "FAULT node n1: rank 1's clock differs from rank 0's by -2.50 s" in text


def test_two_ranks_report_on_their_node(launch, tmp_path):
    run = launch(NODES, np=2, cwd=tmp_path, timeout=90)
    out = run.stdout[0]
    node = load_config().node_name()
    assert re.search(rf"^ *{re.escape(node)} +2 ", out, re.M), out
    assert "slowest: rank " in out
    assert re.search(
        r"^allreduce of 4 MB per rank over 2 ranks, MPI \(.*: [\d.]+ GB/s, result correct",
        out,
        re.M,
    )
    # Other tests run at the same time, so a rank may really be slow.
    faults = [line for line in out.splitlines() if line.startswith("FAULT")]
    assert all("is slow: " in line for line in faults), out
    failing = [node] if faults else []
    assert out.endswith(f"failing_nodes.txt: {node}\n" if faults else "all nodes are OK\n")
    assert (run.returncode != 0) == bool(faults)
    assert (tmp_path / "failing_nodes.txt").read_text().split() == failing
    assert [path.name for path in tmp_path.iterdir()] == ["failing_nodes.txt"]


def test_a_rank_that_does_not_answer_is_reported_in_time(launch, tmp_path):
    dead = 'if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then exec sleep 60; fi; exec "$@"'
    hosts = f"{load_config().node_name()},node[07-08]"
    command = ["sh", "-c", dead, "rank", *NODES, "--seconds", "3", "--hosts", hosts]
    run = launch(command, np=2, cwd=tmp_path, timeout=60)
    assert run.returncode != 0
    assert run.wall < 30
    assert "FAULT: rank 1 did not answer" in run.stdout[0]
    assert "allreduce not tried: not all ranks can take part" in run.stdout[0]
    assert (tmp_path / "failing_nodes.txt").read_text() == "node07,node08\n"
    assert [path.name for path in tmp_path.iterdir()] == ["failing_nodes.txt"]
