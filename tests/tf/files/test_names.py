"""Names that differ by rank, files of tf.data, and file calls of the script itself."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from extras import load
from tiers import full


def files(directory: Path) -> list[str]:
    """All remaining files, without the random numbers in the names of snapshots."""
    found = (str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file())
    return sorted(re.sub(r"\d{15,}", "number", name) for name in found)


@pytest.fixture(scope="module", params=[2, full(3)])
def named(request, launch, scripts, tmp_path_factory) -> Any:
    """The output of the ranks and of one process, and the files that they left."""
    root = tmp_path_factory.mktemp("names")
    (root / "ranks").mkdir()
    (root / "one").mkdir()
    env = {"TF_MPI_STALL_TIMEOUT": "30"}
    run = launch(scripts / "files_names.py", np=request.param, args=[root / "ranks"], env=env)
    one = launch(scripts / "files_names.py", np=0, args=[root / "one"], pooled=True).check()
    return run.check(), one.results[0], root


def test_each_rank_finds_the_files_of_one_process(named):
    run, one, _ = named
    for printed in run.results:
        for case, found in one.items():
            if case in ("last", "loaded", "restored", "mkstemp", "replaced", "common", "all"):
                found = pytest.approx(found, rel=1e-4)
            assert printed[case] == found, case


def test_each_rank_loads_what_was_saved(named):
    run, _, _ = named
    for printed in run.results:
        assert printed["loaded"] == printed["restored"] == printed["mkstemp"]
        assert printed["common"] == printed["all"]


def test_a_cache_file_is_complete_or_absent(named):
    """Each rank decodes all samples once to fill it; in another run no rank decodes any."""
    run, _, root = named
    for printed in run.results:
        assert printed["from the file"]
        assert printed["decoded"] == [1, 0]
        assert printed["half"] == [0, 1, 2]  # not what rank 0 has written so far
    assert "into its own file, of which rank 0's is kept, so every rank does all" in run.stderr[0]
    assert not list((root / "ranks").glob("cut*"))


def test_the_remaining_names_are_those_of_one_process(named):
    _, _, root = named
    assert files(root / "ranks") == files(root / "one")


def test_the_line_about_a_name_gives_both_files(named):
    run, _, _ = named
    assert "different data" not in run.stderr[0]  # the path of a rank's cache is no difference
    for rank, text in enumerate(run.stderr[1:], start=1):
        lines = [line for line in text.splitlines() if "refers to the same file" in line]
        assert len(lines) == 1 and f"where rank {rank} saves" in lines[0]


@pytest.mark.parametrize("case", ["create", full("remove"), full("hdf5")])
def test_a_failed_file_call_of_the_script_is_explained(launch, scripts, tmp_path, case):
    run = launch(scripts / "files_calls.py", np=2, args=[case, tmp_path])
    assert run.returncode != 0
    if case == "hdf5":
        assert "ranks open a file to change it, but HDF5 allows only one" in run.stderr[1]
        return
    said, way_out = {
        "create": (f"'{tmp_path}/run' was created during this run", "or on rank 0 only"),
        "remove": (f"if '{tmp_path}/checkpoint.index' existed, another rank", "missing_ok=True"),
    }[case]
    for text in run.stderr:
        assert "run the script's own file calls" in text and said in text and way_out in text


@pytest.mark.full
def test_a_save_that_rank_0_does_not_make_ends_when_rank_0_waits(launch, scripts, tmp_path):
    run = launch(scripts / "files_calls.py", np=2, args=["gone", tmp_path], timeout=60)
    assert run.returncode != 0 and run.wall < 40
    assert "but rank 0 has continued without saving it" in run.stderr[1]


def test_a_process_number_that_two_ranks_have_tells_no_paths_apart(monkeypatch):
    """Ranks in containers may have the same one."""
    monkeypatch.setattr(os, "getpid", lambda: 5000)
    names = load("tensorflow.mpi._src.files.names")
    names.note_process_numbers([5000, 5001])
    assert names.pattern("/a/run_5000") == "/a/run_*"
    names.note_process_numbers([5000, 5000])
    assert names.pattern("/a/run_5000") == "/a/run_5000"
