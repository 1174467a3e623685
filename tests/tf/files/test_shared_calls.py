"""Calls of the script that change paths: all ranks make them, and each succeeds once on each rank,
as in a single process."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from tensorflow.mpi._src.files import journal, shared_calls

from extras import load
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
    os.write(file, (json.dumps(["job", 1, "mkdir /a", "begins", None, 0]) + "\n").encode())
    seconds = []
    for _ in range(2):
        journal.begin("mkdir /a")
        journal.fail("mkdir /a")
        before = time.monotonic()
        assert not journal.made_by_another("mkdir /a")
        seconds.append(time.monotonic() - before)
    os.close(file)
    assert seconds[1] < 0.4 < seconds[0]


class Rank:
    """A rank of two on this node, by modules of its own. Its methods are the script's calls."""

    def __init__(self, number: int) -> None:
        modules = load("tensorflow.mpi._src.replaced.python")
        modules.writes.saves.shared = lambda: True
        modules.writes.group.rank = number
        modules.writes.versions.warn_of_drop = lambda *_: None
        modules.writes.differing_names.note = lambda _: None
        modules.writes.journal._job, modules.writes.journal._own = "job", number
        modules.writes.journal._has_all_ranks = True
        self.own = f"own{number}"
        modules.shared_calls.names.pattern = lambda path: path.replace(self.own, "*")
        self.journal, self.versions = modules.writes.journal, modules.writes.versions
        self.open = modules.writes._OPEN
        for function in (os.mkdir, os.rmdir, os.remove, os.rename, os.replace, shutil.move):
            setattr(self, function.__name__, modules.shared_calls.taken_as_done(function))
        self.rmtree = modules.shared_calls.removing(shutil.rmtree)

    def exchange(self) -> None:
        self.journal._note_exchange()
        self.journal.collectives.last_started += 1
        self.journal.collectives.last_ended += 1

    def write(self, path: str, text: str) -> None:
        with self.open(path, "w") as file:
            file.write(text)

    def append(self, path: str, text: str) -> None:
        with self.open(path, "a") as file:
            file.write(text)


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("private")))
        yield [Rank(0), Rank(1)]


@pytest.fixture
def ranks(both, monkeypatch, tmp_path) -> Any:
    """In an empty folder."""
    monkeypatch.chdir(tmp_path)
    return both


def left() -> dict[str, str | None]:
    """The files and, with None, the folders."""
    return {
        str(path): None if path.is_dir() else path.read_text() for path in sorted(Path().rglob("*"))
    }


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(
    ("script", "files"),
    [
        ("write t.tmp 0; replace t.tmp t; write t 1", {"t": "1"}),
        ("write t.tmp 0; move t.tmp t; write t.tmp 1; move t.tmp t", {"t": "1"}),
        ("mkdir d.tmp; write d.tmp/x 0; rename d.tmp d; write d/x 1", {"d": None, "d/x": "1"}),
        ("write a 0; remove a", {}),
        ("mkdir d; rmtree d", {}),
        ("mkdir d; rmdir d; mkdir d; write d/x 0", {"d": None, "d/x": "0"}),
        ("mkdir d; mkdir d/e; write d/e/x 0; rmtree d", {}),
        ("write own 0; replace own t; write own 1; replace own t; write t 2", {"t": "2"}),
        ("mkdir own; write own/x 0; rename own d; write d/x 1", {"d": None, "d/x": "1"}),
        ("mkdir own; rename own d; rmdir d", {}),
        ("write own 0; move own t; write t 1; remove t; write t 2", {"t": "2"}),
    ],
)
def test_a_rank_that_comes_when_another_is_done_changes_nothing(ranks, first, script, files):
    for rank in (ranks[first], ranks[1 - first]):
        for call in script.split("; "):
            name, *args = call.replace("own", rank.own).split()
            getattr(rank, name)(*args)
    assert left() == files


def test_what_another_rank_has_written_since_remains(ranks):
    early, late = ranks
    early.write("t", "0")
    early.remove("t")
    late.write("t", "0")
    early.write("t", "1")
    late.remove("t")
    late.write("t", "1")
    assert left() == {"t": "1"}


@pytest.mark.parametrize("late", [0, 1])
def test_an_older_version_of_a_late_rank_is_not_taken_for_the_own(ranks, late):
    late, early = ranks[late], ranks[1 - late]
    early.write("t.tmp", "0")
    early.replace("t.tmp", "t")
    with late.open("t.tmp", "w") as older:
        older.write("0")
        newer = early.open("t.tmp", "w")
        newer.write("1")
    newer.close()
    late.replace("t.tmp", "t")
    early.replace("t.tmp", "t")
    late.write("t.tmp", "1")
    late.replace("t.tmp", "t")
    assert left() == {"t": "1"}


def test_a_file_of_the_inode_of_a_removed_one_is_not_taken_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "_made", {})
    path = tmp_path / "t"
    path.write_text("0")
    journal.note_made("write t", str(path), path.stat())
    assert journal.made_since(-1, str(tmp_path)) == [str(path)]
    os.utime(path, ns=(0, 0))
    assert journal.made_since(-1, str(tmp_path)) == []


@pytest.mark.parametrize("first", [0, 1])
def test_a_rank_may_skip_calls_because_of_a_file_that_another_has_made(ranks, first):
    early, late = ranks[first], ranks[1 - first]
    early.write("log", "header\n")
    early.write("old", "")
    late.write("old", "")
    early.remove("old")
    # The late rank has found the log, and nothing to remove.
    for row in ("1\n", "2\n"):
        for rank in (early, late) if row == "1\n" else (late, early):
            rank.append("log", row)
    for rank in ranks:
        rank.exchange()
    for rank in ranks:
        rank.write("old", "")
    late.remove("old")
    late.write("old", "new")
    early.remove("old")
    early.write("old", "new")
    early.write("log", "")
    late.write("log", "")
    late.append("log", "3\n")
    early.append("log", "3\n")
    assert left() == {"log": "3\n", "old": "new"}


def test_a_file_of_the_first_row_is_found_by_a_rank_that_has_not_made_it(ranks):
    early, late = ranks
    early.write("log", "header\n")
    early.append("log", "1\n")
    late.append("log", "1\n")
    assert left() == {"log": "header\n1\n"}


def test_own_files_moved_into_a_folder_are_those_of_each_rank(ranks):
    for rank in ranks:
        rank.mkdir("d")
        rank.write(rank.own, "")
        assert rank.move(rank.own, "d") == f"d/{rank.own}"
    assert left() == {"d": None, "d/own0": "", "d/own1": ""}


def test_what_another_rank_uses_remains(ranks):
    early, late = ranks
    for rank in ranks:
        rank.mkdir("d")
        rank.append("log", "old\n")
        if rank is late:  # these are now the late rank's
            early.mkdir("d")
            early.append("log", "new\n")
        rank.rmtree("d")
        rank.remove("log")
    late.mkdir("d")
    late.append("log", "new\n")
    assert left() == {"d": None, "log": "old\nnew\n"}


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("old", [False, True])
def test_what_a_rank_that_is_ahead_has_begun_is_not_removed(ranks, first, old):
    """`if os.path.exists(x): remove(x)`, when another rank has made x anew."""
    if old:
        for name in ("d", "kept", "log", "t"):
            Path(name).mkdir() if name == "d" else Path(name).write_text("old")
    for rank in (ranks[first], ranks[1 - first]):
        if os.path.exists("d"):
            rank.rmtree("d")
        rank.mkdir("d")
        for path in ("log", "t"):
            if os.path.exists(path):
                rank.remove(path)
        if os.path.exists("kept"):
            rank.rename("kept", "kept.old")
        rank.write("kept", "new")
        rank.append("log", "row\n")
        if rank is ranks[first]:
            rank.write("t", "1")
            rank.write("d/x", "first")
            rank.write("d/y", "first")
    ranks[1 - first].write("t", "2")
    files = {"d": None, "d/x": "first", "d/y": "first", "kept": "new", "log": "row\n", "t": "1"}
    if old:
        files["kept.old"] = "old"
    assert left() == files
    for rank in ranks:
        rank.remove("t")  # it has written it
        rank.rmtree("d")
        rank.remove("log")
        rank.remove("kept")
        if old:
            rank.remove("kept.old")
    assert left() == {}


def test_what_was_begun_before_all_ranks_waited_is_removed(ranks):
    early, late = ranks
    late.journal._note_exchange()  # it waits
    early.write("t", "")
    early.mkdir("d")
    for rank in ranks:
        rank.exchange()
    late.remove("t")
    late.rmdir("d")
    assert left() == {}


@pytest.mark.parametrize("first", [0, 1])
def test_rank_0s_longer_file_stays(ranks, first):
    """Output that is directed to a file: only rank 0 has the messages of Keras."""
    files = {}
    for rank in (ranks[first], ranks[1 - first]):
        files[rank.own] = rank.open("log", "w")
        files[rank.own].write("begin\n")
        files[rank.own].flush()
    for rank in ranks:
        rank.exchange()
    for rank in (ranks[first], ranks[1 - first]):
        if rank is ranks[0]:
            files[rank.own].write("Epoch 1\n")
            if first == 0:
                files[rank.own].flush()
        files[rank.own].write("end\n")
        files[rank.own].close()
    assert left() == {"log": "begin\nEpoch 1\nend\n"}
    for rank in (ranks[1 - first], ranks[first]):
        rank.write("log", f"next of {rank.own}")
    assert left() == {"log": f"next of own{1 - first}"}


def test_what_rank_0_adds_to_another_ranks_file_is_not_taken_for_the_longer_one(ranks, monkeypatch):
    """It has read the file when it was there, but not yet in the journal."""
    end = ranks[1].versions.end

    def end_later(*args: Any) -> None:
        with ranks[0].open("t") as file:
            assert file.read() == "1"
        end(*args)

    monkeypatch.setattr(ranks[1].versions, "end", end_later)
    ranks[1].write("t", "1")
    ranks[0].write("t", "1 1")
    assert left() == {"t": "1"}


@pytest.mark.parametrize("slow", [0, 1])
def test_a_rank_reads_its_whole_file_while_another_still_writes(ranks, slow):
    slow, fast = ranks[slow], ranks[1 - slow]
    with slow.open("t", "w") as file:
        file.write("a")
        file.flush()  # as after a second
        with fast.open("t", "w") as same:
            same.write("ab")
        assert left() == {"t": "ab"}
        file.write("b")
    assert left() == {"t": "ab"}


@pytest.mark.parametrize("first", [0, 1])
def test_a_file_is_renamed_and_removed_before_it_is_closed(ranks, first):
    for rank in (ranks[first], ranks[1 - first]):
        rank.mkdir("d.tmp")
        with rank.open("t.tmp", "w") as file, rank.open("u", "w") as gone:
            file.write("0")
            gone.write("1")
            with rank.open("d.tmp/x", "w") as inside:
                inside.write("2")
                rank.rename("d.tmp", "d")
            rank.replace("t.tmp", "t")
            rank.remove("u")
        assert left() == {"d": None, "d/x": "2", "t": "0"}
