"""Files that the script itself writes on all ranks, to one path, are never read incomplete."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from tiers import full


@pytest.fixture(scope="module", params=[(2, ""), full((3, "")), full((2, "nfs"))], ids=str)
def wrote(request, launch, scripts, tmp_path_factory) -> Any:
    """On a file system that supports files without names, and on one that does not."""
    return write(launch, scripts, tmp_path_factory, *request.param)


def write(launch: Any, scripts: Path, tmp_path_factory: Any, ranks: int, kind: str) -> Any:
    folder = tmp_path_factory.mktemp("whole")
    run = launch(scripts / "files_whole.py", np=ranks, args=[folder, kind]).check()
    return run, folder


def test_no_rank_reads_an_incomplete_file(wrote):
    run, _ = wrote
    for printed in run.results:
        assert printed["kinds"] == 11
        assert printed["broken"] == [], run.stderr


def test_a_lock_file_opened_for_writing_locks(wrote):
    run, _ = wrote
    for printed in run.results:
        assert printed["count"] == 20  # as of one process
    held = sorted(interval for printed in run.results for interval in printed["held"])
    assert len(held) == 20 * len(run.results)
    assert all(one[1] <= after[0] for one, after in itertools.pairwise(held))


def test_a_file_that_stays_open_is_visible_as_it_grows(wrote):
    run, _ = wrote
    for printed in run.results:
        assert printed["logs"] == ["", "one ", "two ", "three"]


def test_modes_links_and_errors_of_files_do_not_change(wrote):
    run, folder = wrote
    for printed in run.results:
        assert printed["files"] == {
            "mode": "0o640",
            "through": ["both", "both", "both"],
            "symbolic": True,
            "errors": ["FileNotFoundError", "IsADirectoryError", "FileExistsError", "ValueError"],
            "in place": True,
            "read": [".both", "w+", "written"],
            "child": "of a child",
        }
        assert printed["hidden"] == []
    assert (folder / "at_exit").read_text() == "written at exit"
    assert not [path for path in Path(folder).iterdir() if path.name.startswith(".")]


def test_a_file_that_each_rank_empties_and_appends_to(wrote):
    _, folder = wrote
    assert (folder / "emptied").read_text() == "once\n" * 2


def test_one_file_under_another_name_on_each_rank_is_reported(wrote):
    run, folder = wrote
    line = f"rank 0 has written '{folder}/run.json' and rank 1 '{folder}/run1.json'. If these"
    assert [text.count(line) for text in run.stderr] == [0, 1, *[0] * (len(run.results) - 2)]
    assert sum(text.count("If these should be one file") for text in run.stderr) == 1


def test_a_database_that_each_rank_changes_is_reported(wrote):
    run, folder = wrote
    ranks = len(run.results)
    assert [printed["inserted"] for printed in run.results] == [1] * ranks
    line = f"each of the {ranks} ranks has written to the database '{folder}/results.db', so rows"
    assert [text.count(line) for text in run.stderr] == [0, 1, *[0] * (ranks - 2)]
    assert sum(text.count("ranks has written to the database '") for text in run.stderr) == 1


@pytest.mark.full
def test_files_that_cannot_be_replaced_are_copied(launch, scripts, tmp_path_factory):
    """Without /proc nothing is lost, but a rank may read what another has started to write."""
    run, folder = write(launch, scripts, tmp_path_factory, 2, "proc")
    test_a_file_that_stays_open_is_visible_as_it_grows((run, folder))
    test_modes_links_and_errors_of_files_do_not_change((run, folder))
