"""The benchmark suite: its arithmetic with given numbers, its processes, and quick runs."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from benchmarks import cli, columns, extras, install_horovod, processes, runner, table
from benchmarks.columns import Column, Launch
from benchmarks.compare import report, text
from benchmarks.compare.systems import System
from benchmarks.cores import round_trip
from benchmarks.workloads import clock
from extras import load_config

ROOT = Path(__file__).resolve().parents[2]


def record(column: str, repeat: int, rate: float | None, note: str = "") -> dict:
    """A run as runner.py records it; a rate of None means that it failed."""
    found = {"workload": "mlp", "style": "v1", "column": column, "repeat": repeat, "ranks": 2}
    if rate is None:
        return {**found, "status": "fails", "note": note}
    return {**found, "status": "ok", "rate": rate, "peak_rss": 2e6, "note": note}


def test_shares_are_relative_to_the_ideal_of_the_same_repeat() -> None:
    runs = [
        record("independent:2", 0, 10.0),
        record("ours:2", 0, 9.0),
        record("independent:2", 1, 5.0),  # the machine slowed down for both
        record("ours:2", 1, 4.0),
        record("independent:2", 2, 8.0),
        record("ours:2", 2, 4.0),
        record("ours:2", 3, 4.0),  # its ideal is missing, so the median ideal, 8, is used
    ]
    ideal, ours = table.rows(runs)
    assert (ideal["rate"], ideal["rate_min"], ideal["rate_max"]) == (8.0, 5.0, 10.0)
    assert (ideal["share"], ours["runs"], ours["rate"]) == (1.0, 4, 4.0)
    # 0.9, 0.8, 0.5, 0.5
    assert ours["share"] == pytest.approx(0.65)
    assert (ours["share_min"], ours["share_max"]) == (0.5, 0.9)
    assert "| mlp | v1 | 8.0/s ± 31% | 0.65 (0.50..0.90) |" in table.to_markdown([ideal, ours])
    (_, line) = csv.DictReader(table.to_csv([ideal, ours]).splitlines())
    assert (line["column"], line["share"], line["peak_rss_mb"]) == ("ours:2", "0.65", "2")


def test_shares_of_turns_are_relative_to_the_adjacent_turn() -> None:
    runs = [record("independent:2", 0, 8.0), record("ours:2", 0, 4.0)]
    runs[0]["turn_rates"] = [10.0, 5.0, 8.0, 8.0, 10.0]
    runs[1]["turn_rates"] = [9.0, 4.0, 4.0, 6.0, 10.0]
    ideal, ours = table.rows(runs)
    assert ours["share"] == pytest.approx(0.8)  # median of 0.9, 0.8, 0.5, 0.75, 1
    assert (ours["share_min"], ours["share_max"], ours["turns"]) == (0.75, 0.9, 5)
    text = table.to_markdown([ideal, ours])
    assert "0.80 (0.75..0.90)" in text and "quartiles of the turns" in text


def test_the_table_shows_the_round_trip_between_cores() -> None:
    runs = [record("independent:2", 0, 8.0), record("ours:2", 0, 4.0), record("ours:2", 1, 4.0)]
    runs[1]["round_trips"], runs[2]["round_trips"] = [320.4, 290.0], [300.0, 570.0]
    ideal, ours = table.rows(runs)
    assert (ideal["round_trip_min"], ours["round_trip_max"]) == ("", 570.0)
    assert "| 290..570 ns |" in table.to_markdown([ideal, ours])
    assert round_trip([0]) is None
    both = columns.cores()[:2]
    if len(both) > 1:
        before = os.sched_getaffinity(0)
        found = round_trip(both)
        assert found is not None and 50 < found < 1e6, "ns; longer than a process switch"
        assert os.sched_getaffinity(0) == before


def test_a_failed_cell_becomes_a_note_in_the_table() -> None:
    runs = [record("independent:2", 0, 10.0), record("mwms:2", 0, None, "ValueError: no")]
    text = table.to_markdown(table.rows(runs))
    assert "| mlp | v1 | 10.0/s ± 0% | fails |" in text
    assert "- mlp v1 mwms:2: ValueError: no" in text


def test_columns_and_variants_are_parsed() -> None:
    assert Column.parse("ours:4+small") == Column("ours", 4, "small")
    for wrong in ("ours", "ours:0", "theirs:2"):
        with pytest.raises(ValueError, match="KIND:RANKS"):
            Column.parse(wrong)
    words = ["--variant", "small:B=2,ROWS=7", "--columns", "ours:2+small", "--workloads", "a,cnn"]
    options = cli.parse(words)
    assert options.variants == {"small": {"B": "2", "ROWS": "7"}}
    assert {cell.workload for cell in options.cells} == {"mlp", "cnn"}
    launch = Launch(1.0, 10, options.variants)
    started = columns.processes(Column.parse("ours:2+small"), "mlp", "v1", Path("x"), launch)
    assert [process.environment["B"] for process in started] == ["2"]
    command = started[0].command
    assert command[command.index("--rows") + 1] == "7" and "ROWS" not in started[0].environment
    with pytest.raises(SystemExit):
        cli.parse(["--columns", "ours:2+unknown"])


def test_runs_of_a_row_are_adjacent_and_can_be_resumed(tmp_path: Path) -> None:
    planned = list(runner.cells(["mlp", "cnn"], ["v1"], [Column("off", 2), Column("ours", 2)], 2))
    assert [cell.key[0] for cell in planned] == ["mlp", "mlp", "cnn", "cnn"] * 2
    records = runner.Records(tmp_path / "runs.jsonl")
    records.add(record("ours:2", 0, 3.0))
    again = runner.Records(tmp_path / "runs.jsonl")
    assert again.keys() == {("mlp", "v1", "ours:2", 0)}


def result(core: int, digest: int) -> dict:
    return {
        "affinity": [core],
        "digest": digest,
        "steps": 10,
        "seconds": 2.0,
        "turn_rates": [5.0],
        "median_step": 0.2,
        "peak_rss": 1,
    }


def test_a_record_notes_reasons_for_doubt() -> None:
    ours = Column("ours", 2)
    assert runner.summary(ours, [result(0, 7), result(1, 7)])["rate"] == 5.0
    assert runner.summary(ours, [result(0, 7), result(1, 7)])["note"] == ""
    assert "nothing was averaged" in runner.summary(ours, [result(0, 7), result(1, 8)])["note"]
    assert runner.summary(Column("off", 2), [result(0, 7), result(1, 8)])["note"] == ""
    if len(columns.cores()) > 1:
        assert "share cores" in runner.summary(ours, [result(0, 7), result(0, 7)])["note"]


def python(code: str) -> processes.Process:
    return processes.Process([sys.executable, "-c", code], {})


def test_every_extra_has_rows_with_and_without_it() -> None:
    assert set(extras.WHERE) == set(load_config().EXTRAS)
    options = cli.parse(["--extras", "--repeats", "1"])
    assert options.turns > 1
    for extra, places in extras.WHERE.items():
        assert options.variants[f"without_{extra}"] == {"TF_MPI_EXTRAS": f"-{extra}"}
        for place in places:
            row = {cell.column.name for cell in options.cells if cell.key[:2] == place}
            assert {"independent:2", "ours:2", f"ours:2+without_{extra}"} <= row


def test_the_gain_of_an_extra_is_computed_from_turns() -> None:
    place = dict(zip(("workload", "style"), extras.WHERE["divided_updates"][0]))
    runs = [
        {**record("ours:2", 0, 1.0), **place, "turn_rates": [2.0, 3.0, 4.0]},
        {**record("ours:2+without_divided_updates", 0, 1.0), **place, "turn_rates": [2.0] * 3},
    ]
    line = extras.to_markdown(runs).splitlines()[-1]
    assert line.startswith("| divided_updates | embedding | v1 | 1.500 (1.25..1.75) | ")


def test_a_run_kills_all_its_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PEER_GRACE", 0.5)
    log = tmp_path / "log"
    child = "import subprocess, sys; subprocess.Popen(['sleep', '61.7'], start_new_session=True)"
    begin = time.monotonic()
    with pytest.raises(processes.RunFailed, match="after 1 s"):
        processes.run([python(f"{child}; import time; time.sleep(60)")], log, 1, tmp_path)
    with pytest.raises(processes.RunFailed, match="ValueError: the reason"):
        pair = [python("raise ValueError('the reason')"), python("import time; time.sleep(60)")]
        processes.run(pair, log, 50, tmp_path)
    assert time.monotonic() - begin < 30
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert "sleep 61.7" not in left.stdout


def test_differences_between_checkpoints() -> None:
    reference = np.array([1.0, -4.0], np.float32)
    assert report.differences(reference + np.array([0, 0.5], np.float32), reference) == (0.5, 0.125)
    assert "rounding" in report.explanation(2e-6, 1e-6, 1e-4)
    assert "more than rounding" in report.explanation(5e-5, 1e-6, 1e-4)
    assert "OVER" in report.explanation(2e-4, None, 1e-4)
    with pytest.raises(ValueError, match="separate models"):
        System.parse("off:2")


def test_words_are_numbered_by_frequency() -> None:
    # the: 3, of: 2, then alphabetically; a vocabulary of 4 is 3 words and the unknown one
    found = text.tokens("The of the ---- THE of Apple", 4)
    assert found.tolist() == [1, 2, 1, 3, 1, 2, 0]
    assert len(text.read("installed")) > 100_000


def run_module(module: str, *words: str | Path, seconds: float) -> None:
    """Runs python -m module from the root, as a user would."""
    command = [sys.executable, "-m", module, *map(str, words)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def check_quick_run(folder: Path, read: Callable[[str], str]) -> None:
    runs = [json.loads(line) for line in read("runs.jsonl").splitlines()]
    assert [(run["style"], run["column"]) for run in runs] == [
        ("v1", "independent:2"),
        ("v1", "ours:2"),
        ("fit", "independent:2"),
        ("fit", "ours:2"),
    ]
    logs = "\n".join(path.read_text() for path in (folder / "logs").iterdir())
    for run in runs:
        assert run["status"] == "ok", logs[-4000:]
        assert run["rate"] > 0
        assert "averaged" not in run["note"]  # the ranks ended with the same model


@pytest.mark.full
def test_the_suite_runs(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_module("benchmarks", "--quick", "--styles", "v1,fit", "--out", out, seconds=240)
    check_quick_run(out, lambda name: (out / name).read_text())
    assert "| tiny | fit |" in (out / "table.md").read_text()


@pytest.mark.full
def test_in_lockstep_no_process_gets_a_step_ahead(tmp_path: Path) -> None:
    ended = [0, 0]

    def process(rank: int) -> list[int]:
        """The number of steps that the other had finished whenever this one started a step."""
        options = clock.Options(
            workload="tiny",
            rows=1,
            seconds=1.0,
            jit=False,
            raw=False,
            whole=False,
            peer="none",
            lockstep=True,
            folder=tmp_path,
            turns=0,
            rank=rank,
            size=2,
        )
        lockstep = clock.Lockstep(options)
        seen = []
        for _ in range(20):
            seen.append(ended[1 - rank])
            time.sleep(0.003 * rank)
            ended[rank] += 1
            lockstep.step_ended()
        return seen

    with ThreadPoolExecutor(2) as threads:
        for seen in threads.map(process, range(2)):
            assert all(step <= other <= step + 1 for step, other in enumerate(seen)), seen


@pytest.mark.full
def test_the_columns_of_a_row_take_turns(tmp_path: Path) -> None:
    """A column that fails leaves the others their turns."""
    out = tmp_path / "out"
    words = ["--turns", "3", "--variant", "broken:TF_MPI_STALL_TIMEOUT=never"]
    words += ["--styles", "v1,fit", "--columns", "lockstep:2,ours:2+broken,ours:2"]
    run_module("benchmarks", "--quick", "--out", out, *words, seconds=240)
    runs = [json.loads(line) for line in (out / "runs.jsonl").read_text().splitlines()]
    logs = "\n".join(path.read_text() for path in (out / "logs").iterdir())
    assert [run["status"] for run in runs] == ["ok", "fails", "ok"] * 2, logs[-4000:]
    for run in runs:
        assert run["status"] == "fails" or len(run["turn_rates"]) == 3
        assert "averaged" not in run["note"]


@pytest.mark.parametrize("stops", [True, False])
def test_a_rank_that_passed_on_its_turn_is_stopped_if_asked(tmp_path: Path, stops: bool) -> None:
    """Otherwise a polling thread would take the core from the others."""
    code = (
        "import os, sys; turn, passed = (open(os.path.join(sys.argv[1], name), mode, buffering=0)"
        " for name, mode in (('turn.0', 'rb'), ('passed.0', 'wb')))\n"
        "while turn.read(1): passed.write(os.getpid().to_bytes(4, 'little'))"
    )
    pipes = processes.Pipes(tmp_path, 1, stops=stops)
    polls = processes.Process([sys.executable, "-c", code, str(tmp_path)], {})

    def state() -> str:
        (pid,) = (process.pid for process in run._started)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

    with processes.Run([polls], tmp_path / "log", tmp_path) as run:
        for _ in range(3):
            pipes.give()
            assert state() != "T"
            deadline = time.monotonic() + 30
            assert pipes.wait(run, deadline), (tmp_path / "log").read_text()
            while stops and state() != "T":
                assert time.monotonic() < deadline, state()
            assert (state() == "T") == stops
    pipes.close()


def test_one_line_of_horovods_sources_is_removed() -> None:
    text = "list(APPEND A a.cc)\nlist(APPEND A x/xla_mpi_ops.cc)\nend()\n"
    assert install_horovod.without_xla(text) == "list(APPEND A a.cc)\nend()\n"
    with pytest.raises(ValueError, match="in 0 lines"):
        install_horovod.without_xla("")
    assert cli.parse([]).horovod_python in (str(columns.HOROVOD / "bin/python"), sys.executable)


@pytest.mark.full
def test_the_comparison_runs(tmp_path: Path) -> None:
    systems = ["--systems", "one,control,ours:2"]
    run_module("benchmarks.compare", "--quick", "--out", tmp_path, *systems, seconds=240)
    rows = list(csv.DictReader((tmp_path / "variables.csv").read_text().splitlines()))
    logs = "\n".join(path.read_text() for path in tmp_path.glob("*/log"))
    assert {row["system"] for row in rows} == {"control", "ours:2"}, logs
    assert len(rows) == 2 * 5
    assert max(float(row["largest_difference"]) for row in rows) < 1e-5
    # The ranks' rows matter: the result of one rank's rows alone is far away (see train.py).
    assert "different models" not in (tmp_path / "report.md").read_text()
