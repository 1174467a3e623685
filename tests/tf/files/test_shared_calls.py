"""Calls of the script that change paths: all ranks make them, and each succeeds once on each rank,
as in a single process."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest
from tensorflow.mpi._src.files import journal, shared_calls

from tiers import full

FAIL_ALONE = [
    "mkdir again: FileExistsError",
    "mkdir of an old one: FileExistsError",
    "remove again: FileNotFoundError",
    "remove of none: FileNotFoundError",
    "rename into none: FileNotFoundError",
]


@pytest.fixture(scope="module", params=[2, full(4)])
def ran(request, launch, scripts, tmp_path_factory) -> Any:
    def run(ranks: int, **env: str) -> Any:
        folder = tmp_path_factory.mktemp("calls")
        return launch(scripts / "files_shared_calls.py", np=ranks, args=[folder], env=env).check()

    return run(request.param), run(1, TF_MPI_ENABLE="0").results[0]


def test_a_call_that_another_rank_has_made_succeeds(ran):
    run, alone = ran
    assert alone["failed"] == FAIL_ALONE
    for printed in run.results:
        assert printed["failed"] == FAIL_ALONE, run.report()


def test_the_paths_are_those_of_one_process(ran):
    run, alone = ran
    assert "run/moved" in alone["left"] and "state" in alone["left"]
    for printed in run.results:
        assert printed == alone | {"failed": printed["failed"]}


def test_a_rank_that_is_late_undoes_nothing(ran):
    run, alone = ran
    assert alone["logs"] == ["new", "old"] and alone["version"] == "version 2 x"
    assert alone["late"] == ["own"] * 3 and "fresh/of rank 0" in alone["left"]
    for printed in run.results:
        assert [printed[name] for name in ("logs", "version", "late")] == [
            alone[name] for name in ("logs", "version", "late")
        ]


@pytest.mark.parametrize(
    ("args", "kwargs", "paths"),
    [
        (("/a/b",), {"mode": 0o700}, ["/a/b"]),
        ((b"/a/../c", 0o700), {}, ["/c"]),
        (("/a",), {"dst": "/d"}, ["/a", "/d"]),
        (("e",), {"dir_fd": 3}, []),
        (("/f",), {"dir_fd": None}, ["/f"]),
        (("/f/.tensorflow-mpi-0a", "/f/g"), {}, []),
    ],
)
def test_a_call_is_known_by_its_paths(args, kwargs, paths):
    assert shared_calls._paths(args, kwargs) == paths


def test_a_rank_that_died_in_a_call_is_waited_for_once(monkeypatch, tmp_path):
    file = os.open(tmp_path / "journal", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    for name, value in {"_job": "job", "_file": file, "_WAIT_SECONDS": 0.5}.items():
        monkeypatch.setattr(journal, name, value)
    os.write(file, (json.dumps(["job", 1, "mkdir /a", "begins", None]) + "\n").encode())
    seconds = []
    for _ in range(2):
        journal.begin("mkdir /a")
        journal.fail("mkdir /a")
        before = time.monotonic()
        assert not journal.made_by_another("mkdir /a")
        seconds.append(time.monotonic() - before)
    os.close(file)
    assert seconds[1] < 0.4 < seconds[0]
