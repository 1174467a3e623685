"""A file that replaces the one at its path once it is complete."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Any

import pytest

from extras import load


@pytest.mark.parametrize("named", [False, True])
def test_a_file_on_a_file_system_without_modes(monkeypatch, tmp_path, named):
    def refuse(*_: object) -> None:
        raise PermissionError

    atomic = load("tensorflow.mpi._src.files.atomic")
    monkeypatch.setattr(os, "fchmod", refuse)
    atomic.AtomicFile(str(tmp_path / "first")).close()  # the node's lock remains open
    before = os.listdir("/proc/self/fd")
    file = atomic.AtomicFile(str(tmp_path / "file"), named)
    os.write(file.descriptor, b"new")
    file.close()
    assert os.listdir("/proc/self/fd") == before
    assert sorted(os.listdir(tmp_path)) == ["file", "first"]
    assert (tmp_path / "file").read_bytes() == b"new"


@pytest.fixture(scope="module")
def writes() -> Any:
    writes = load("tensorflow.mpi._src.files.writes")
    writes.saves.shared = lambda: True
    writes.differing_names.note = lambda _: None
    return writes


@pytest.fixture
def opens(writes) -> Any:
    """Replaces open()."""
    return writes._OPEN


def test_a_flush_shows_what_was_written_through_the_descriptor(opens, tmp_path):
    path = tmp_path / "file"
    with opens(path, "w") as file:
        file.write("header ")
        file.fileno()
        file.flush()  # as NumPy and PIL do before they write
        assert opens(path).read() == ""
        subprocess.run(["printf", "data"], stdout=file, check=True)
        file.flush()
        assert path.read_text() == "header data"


def test_the_mode_may_change_while_a_file_is_open(writes, opens, tmp_path):
    path = tmp_path / "file"
    with opens(path, "w"):
        writes.atomic.seeing(os.chmod)(path, 0o640)
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_new_file_exists_for_its_writer_alone_until_it_is_closed(writes, opens, tmp_path):
    path = tmp_path / "file"
    with opens(path, "w") as file:
        file.write("text")
        assert not path.exists()  # by os.stat, as another rank finds it
    assert path.read_text() == "text"
    with opens(tmp_path / "another", "w"):
        assert writes.atomic.seeing(os.stat)(tmp_path / "another").st_size == 0


def test_moving_a_new_file_into_place_creates_no_empty_one(writes, opens, monkeypatch, tmp_path):
    """Another rank that finds an empty file would read it."""
    for name in ("stat", "lstat"):
        monkeypatch.setattr(os, name, writes.atomic.seeing(getattr(os, name)))
    created: list[object] = []
    monkeypatch.setattr(writes.atomic.AtomicFile, "exist", lambda _, path: created.append(path))
    with opens(tmp_path / "new", "w") as file:
        file.write("text")
    assert str(tmp_path / "new") not in created


def test_a_tree_with_links_is_copied(writes, monkeypatch, tmp_path):
    """Functions of os are also looked up in sets such as os.supports_follow_symlinks."""
    for name in ("chmod", "lstat", "stat"):
        monkeypatch.setattr(os, name, writes.atomic.seeing(getattr(os, name)))
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "link").symlink_to("file")
    shutil.copytree(tmp_path / "from", tmp_path / "to", symlinks=True)
    assert os.readlink(tmp_path / "to" / "link") == "file"


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give files away")
@pytest.mark.parametrize("refused", [False, True])
def test_a_file_keeps_its_owner_and_attributes(opens, monkeypatch, tmp_path, refused):
    def refuse(*_: object) -> None:
        raise PermissionError

    path = tmp_path / "file"
    path.write_text("old")
    os.chown(path, 1, 2)
    os.setxattr(path, "user.note", b"x")
    if refused:  # it is written in place
        monkeypatch.setattr(os, "fchown", refuse)
    with opens(path, "w") as file:
        file.write("new")
    assert os.listdir(tmp_path) == ["file"]
    status = path.stat()
    assert (status.st_uid, status.st_gid, os.getxattr(path, "user.note")) == (1, 2, b"x")
    assert path.read_text() == "new"
