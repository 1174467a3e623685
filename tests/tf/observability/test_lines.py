"""The lines of reports with made-up numbers, tested in this process without ranks."""

from __future__ import annotations

import argparse
import sys
import types
from typing import Any
from unittest import mock

import pytest

from extras import load


def of_rank(**other: Any) -> dict[str, Any]:
    counts = {"steps": 4, "gradients": 8, "bytes": 8 << 20, "requests": 6, "operations": 12}
    more = {"rounds": 20, "messages_sent": 10, "message_bytes": 2048, "wait": 0.5, "waits": 5}
    times = {"pack": 0.004, "reduce": 0.04, "unpack": 0.004, "apply": 0.4e-5, "exposed": 0.2}
    return {**counts, **more, **times, "hidden": 0.1, "by_bytes": [1, 2], "by_tensors": [3]} | other


def test_the_statistics_are_formatted() -> None:
    report = load("tensorflow.mpi._src.observability.report")
    late = [{"times": 1, "seconds": 0.001}, {"times": 3, "seconds": 0.3}]
    ranks = [of_rank(), of_rank(messages_sent=30)]
    lines = "\n".join(report.format_report({"ranks": ranks, "last_ready": late}))
    for words in (
        "tensorflow.mpi: communication of 2 ranks\n",
        "  steps               4 (2 gradients each)\n",
        "  averaged            8 MB per rank in 6 requests\n",
        "  operations          12, 3 per step\n",
        "  rounds              20, 5 per step\n",
        "  messages of a rank  5 per step, 512 B; rank 0 sent 2.5\n",
        "  per step and rank   pack 1 ms, reduce 10 ms, unpack 1 ms, apply 1 us\n",
        "  exposed             50 ms per step and rank\n",
        "  hidden              25 ms per step and rank\n",
        "  slowest             rank 1\n",
        "  rank  last to be ready   by, on average   waits, on average   exposed    hidden\n",
        "     1               75%           100 ms               100 ms     50 ms     25 ms",
        "  allreduces by size, on rank 0\n",
        "  allreduces by tensors fused, on rank 0\n",
    ):
        assert words in lines
    read = {"rank": 1, "made": 64, "used": 32, "microseconds": 5e5, "read": 3 << 20}
    assert report._input_table([read]) == [
        "  rank   samples made        used   waits for them  read by its process",
        "     1             64          32           0.500 s                 3 MB",
    ]


@pytest.fixture(name="nodes", scope="module")
def nodes_fixture() -> Any:
    return load("tensorflow.mpi._src.observability.nodes")


def test_too_little_shared_memory_is_a_fault(nodes, monkeypatch, tmp_path):
    machine = nodes.machine
    monkeypatch.setattr(machine, "_shm_free", lambda: 3 << 20)
    assert machine._shm_fault() == "/dev/shm has 3 MB free, but up to 64 MB is needed"
    monkeypatch.setattr(machine, "_shm_free", lambda: 1 << 30)
    monkeypatch.setattr(machine.os, "access", lambda *_: False)
    assert machine._shm_fault() == "/dev/shm is not writable"


def test_the_doctor_names_the_wheel(nodes, monkeypatch):
    machine = nodes.machine
    build = types.SimpleNamespace(VERSION="2.21.0+mpi.1.cpu")
    monkeypatch.setattr(machine, "_build_info", build)
    assert machine.wheel() == "tensorflow, without GPUs"
    build.VERSION = "2.21.0+mpi.1.cuda"
    monkeypatch.setattr(machine, "_gpus", lambda: 0)
    assert machine.wheel() == "tensorflow, for GPUs; NVIDIA GPUs on this node: none"


def test_nodes_that_do_not_answer_are_faults(nodes):
    judge = nodes.node_report.judge
    facts = {"node": "a", "wheel": "w", "python": "p", "mpi": "m", "shm_fault": "", "cores": 1}
    facts |= {"load": 0.0, "node_cores": 1, "memory": 1, "memory_free": 1, "shm_free": 1}
    text = "\n".join(judge({0: facts | {"figures": {}}}, 2, ["a", "b"]).text())
    assert "FAULT node b: none of its ranks has answered" in text
    words = "rank 1 did not answer: the node is dead or hangs, or cannot access the folder that"
    assert words in text


def test_a_folder_of_another_user_is_refused(nodes, monkeypatch, tmp_path):
    monkeypatch.setattr(nodes.os, "getuid", lambda: 12345)
    with pytest.raises(PermissionError, match="belongs to another user: pass another --folder"):
        nodes._Exchange(str(tmp_path), 0)


def test_faults_without_a_node_are_reported(nodes, capsys):
    findings = nodes.node_report.Findings(faults={"": ["rank 1 did not answer"]})
    assert nodes._end(findings) == 1
    assert capsys.readouterr().out == "the failing nodes are not known\n"


def test_a_wrong_sum_is_an_error(nodes, monkeypatch):
    monkeypatch.setattr(nodes, "_collective", lambda kind, value, label, **_: value)
    monkeypatch.setattr(nodes, "_ALLREDUCE_SECONDS", 0.0)
    with pytest.raises(ArithmeticError, match="the allreduce's sum is wrong"):
        nodes._allreduce(0, 2)


def test_the_lines_of_bench(monkeypatch, capsys, tmp_path):
    bench = load("tensorflow.mpi._src.observability.bench")
    gate = types.SimpleNamespace(reason="no launcher started this process")
    monkeypatch.setattr(bench.config, "gate", lambda: gate)
    assert bench.main(argparse.Namespace()) == 2
    off = "averaging is off (no launcher started this process); run: mpirun -np 2 python -m"
    assert capsys.readouterr().err.startswith(off)
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    bench._plot(argparse.Namespace(), [])
    assert "no plot: matplotlib is not installed (pip install" in capsys.readouterr().err
    place = {"ranks": 2, "local_ranks": 2, "cores_per_rank": 1.0, "transport": "MPI (Open MPI v5)"}
    monkeypatch.setattr(bench, "_place", lambda: place)
    options = argparse.Namespace(tensors=3, collective="allreduce", dtype="float32")
    assert bench._heading(options)[:2] == [
        "2 ranks, 2 on this node, 1 cores each, MPI (Open MPI v5)",
        "allreduce of 3 tensors at once, float32, sum, in place; medians of alternating samples on "
        "the slowest rank; busbw in GB/s",
    ]
    options.collective = "allgather"
    assert ", float32, rows of all ranks; medians" in bench._heading(options)[1]


def test_the_doctor_reports_a_rank_that_could_not_start(monkeypatch, capsys):
    doctor = load("tensorflow.mpi.doctor")
    monkeypatch.setattr(doctor.mpi, "is_enabled", lambda: False, raising=False)
    monkeypatch.setattr(doctor.group, "fault", "MPI did not start: gone")
    launcher = types.SimpleNamespace(rank=1)
    monkeypatch.setattr(doctor.config, "gate", lambda: types.SimpleNamespace(launcher=launcher))
    assert doctor.main() == 1
    assert capsys.readouterr().err == "tensorflow.mpi rank 1: MPI did not start: gone\n"
    launcher.rank = 0
    monkeypatch.setattr(doctor, "_report", lambda ok: [("gate", "on")])
    doctor.main()
    begins = "--- tensorflow.mpi doctor: paste all of this into a bug report\ngate "
    assert capsys.readouterr().out.startswith(begins)


def test_the_doctors_findings_are_formatted(monkeypatch, tmp_path):
    doctor = load("tensorflow.mpi.doctor")
    facts = {"cores": 4, "processor": "x86", "load": 0.5, "system": "Linux", "shm_free": 3 << 20}
    facts |= {"memory_free": 2**30, "memory": 2**31}
    monkeypatch.setattr(doctor.machine, "facts", lambda: facts)
    assert dict(doctor._machine()[1:]) == {
        "processor": "x86, 4 cores for this process, load 0.5",
        "memory": "1.0 of 2.0 GB free, /dev/shm 3 MB free",
    }
    monkeypatch.setattr(doctor.mpi, "is_enabled", lambda: True, raising=False)
    monkeypatch.setattr(doctor.mpi, "size", lambda: 1, raising=False)
    assert doctor._mpi_library(None) == "not loaded: one rank does not need it"
    old = types.SimpleNamespace(tfmpi_compiles=lambda: 0)
    monkeypatch.setattr(doctor.c_api, "load", lambda: old)
    lacks = "compiled steps (jit_compile=True), which need TensorFlow 2.20 or newer"
    assert doctor._lacks() == [("without", lacks)]
    silent = tmp_path / "mpirun"
    silent.write_text("#!/bin/sh\n")
    silent.chmod(0o755)
    monkeypatch.setattr(doctor.shutil, "which", lambda _: str(silent))
    assert doctor._mpirun(None) == f"{silent} (version unknown)"


def test_overwritten_files_are_a_fault_with_a_remedy(monkeypatch, tmp_path):
    doctor = load("tensorflow.mpi.doctor")
    installation = doctor.installation
    monkeypatch.setattr(installation, "_site", lambda: str(tmp_path))
    monkeypatch.setattr(installation.sys, "executable", "/opt/bin/python")
    for name, more in (("tensorflow-2.21.0+mpi.1.cpu", "tensorflow/mpi/__init__.py,,\n"),
                       ("tensorflow_cpu-2.21.0", "")):  # fmt: skip
        (tmp_path / f"{name}.dist-info").mkdir()
        record = f"tensorflow/__init__.py,,\n{more}"
        (tmp_path / f"{name}.dist-info" / "RECORD").write_text(record)
    fault = "files of tensorflow 2.21.0+mpi.1.cpu were removed by tensorflow-cpu 2.21.0"
    uv = "uv pip uninstall --python /opt/bin/python tensorflow-cpu && uv pip install --python /opt/"
    text = doctor._files()
    assert text.startswith(
        f"WRONG: {fault}; to fix this: {uv}bin/python --force-reinstall --no-deps"
    )
    (tmp_path / "pip").mkdir()
    assert "/opt/bin/python -m pip install --force-reinstall" in doctor._files()


def test_one_rank_tries_no_allreduce(nodes, monkeypatch, capsys):
    monkeypatch.setattr(nodes.node_report, "judge", lambda *_: nodes.node_report.Findings())
    monkeypatch.setattr(nodes, "_print_report", lambda *_: [])
    exchange = types.SimpleNamespace(wait=lambda *_: {0: {"wheel": "w"}}, put=lambda *_: None)
    launcher = types.SimpleNamespace(size=1)
    assert nodes._on_rank_0(exchange, launcher, 0.0, argparse.Namespace(hosts="")) == 0
    assert "allreduce not tried: there is only one rank\n" in capsys.readouterr().out


def test_a_bench_that_does_not_end_ends_its_process(monkeypatch, capsys):
    bench = load("tensorflow.mpi._src.observability.bench")
    monkeypatch.setattr(bench.os, "_exit", mock.Mock(side_effect=SystemExit))
    late = types.SimpleNamespace(tfmpi_bench=lambda *_: bench.errors.DEADLINE_EXCEEDED)
    monkeypatch.setattr(bench.c_api, "load", lambda: late)
    monkeypatch.setattr(bench.c_api, "error_text", lambda _: "a round has not ended within 60 s")
    options = argparse.Namespace(collective="allreduce", dtype="float32", tensors=1, iterations=1)
    vars(options).update(seconds=1.0, timeout=60.0)
    with pytest.raises(SystemExit):
        bench._measure(options, 8)
    line = "tensorflow.mpi bench: a round has not ended within 60 s\n"
    assert capsys.readouterr().err == line
    bench.os._exit.assert_called_once_with(1)


def test_the_plot_of_bench_has_labels(monkeypatch, tmp_path):
    bench = load("tensorflow.mpi._src.observability.bench")
    matplotlib, axes = mock.MagicMock(), [mock.Mock(), mock.Mock()]
    matplotlib.pyplot.subplots.return_value = (mock.Mock(), axes)
    monkeypatch.setitem(sys.modules, "matplotlib", matplotlib)
    row = bench.Row(8, 8, {"engine": [1.0, 2.0]}, 1.0)
    options = argparse.Namespace(collective="allreduce", dtype="float32", plot=tmp_path / "a.png")
    bench._plot(options, [row])
    axes[0].set_ylabel.assert_called_once_with("time (us), median and range")
    axes[1].set_ylabel.assert_called_once_with("busbw (GB/s)")
