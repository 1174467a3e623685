"""Files that all ranks append to have each text once, as from one process."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from extras import load
from tiers import full


@pytest.fixture(scope="module", params=[2, full(3)])
def appended(request, launch, scripts, tmp_path_factory) -> Any:
    def run(ranks: int, *words: str, **env: str) -> Any:
        folder = tmp_path_factory.mktemp("appends")
        (folder / "old.csv").write_text("epoch,loss\n0,1.0\n")
        args = [folder, *words]
        run = launch(scripts / "files_appends.py", np=ranks, args=args, env=env).check()
        return run, folder

    return run(request.param, "differ"), run(1, TF_MPI_ENABLE="0")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "differ.txt"}


def test_the_files_are_those_of_one_process(appended):
    (_, folder), (_, alone) = appended
    found = contents(folder)
    assert found["same.txt"] == b"done\n" * 6
    assert "by_size.log.8" in found and "by_day.log.1970-01-05" in found
    assert found == contents(alone)


def test_each_rank_reads_what_it_has_appended(appended):
    (run, _), _ = appended
    for printed in run.results:
        assert printed["read"] == [str(epoch) for epoch in range(6)]


def test_a_change_that_another_rank_has_made_is_reported(appended):
    (run, folder), _ = appended
    line = f"has read '{folder}/history.json' after another rank had changed it, so its own change"
    assert any(line in text for text in run.stderr[:2]), run.report()
    assert not any("after another rank had changed it" in text for text in run.stderr[2:])


def test_text_that_differs_by_rank_is_there_and_reported(appended):
    (run, folder), _ = appended
    ranks = range(len(run.results))
    lines = (folder / "differ.txt").read_text().splitlines()
    assert sorted(lines) == ["for all", *(f"of rank {rank}" for rank in ranks)]
    more = len("of rank 0\n") * (len(ranks) - 1)
    line = (
        f"'{folder}/differ.txt' has grown by {more} bytes more than any one rank has appended: text"
    )
    assert [text.count(line) for text in run.stderr] == [1, *[0] * (len(ranks) - 1)]
    assert sum(text.count("any one rank has appended") for text in run.stderr) == 1


def test_a_write_during_a_rollover_keeps_other_ranks_out(monkeypatch, tmp_path):
    appends = load("tensorflow.mpi._src.files.appends")
    monkeypatch.setattr(appends.private.tempfile, "tempdir", str(tmp_path))
    with appends.alone_on_node():
        with appends.alone_on_node():
            pass
        other = appends.private.open_file(appends._LOCK_FILE)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)
