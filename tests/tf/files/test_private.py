"""Only the user can access the folder through which a node's ranks take turns."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(name="private")
def private_fixture(tmp_path, monkeypatch) -> ModuleType:
    """The module on its own, with a temporary folder that all users share."""
    tensorflow = importlib.util.find_spec("tensorflow")  # found without importing it
    assert tensorflow is not None and tensorflow.submodule_search_locations
    package = Path(tensorflow.submodule_search_locations[0])
    file = package / "mpi" / "_src" / "files" / "private.py"
    spec = importlib.util.spec_from_file_location("private", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tmp_path.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return module


@pytest.fixture(name="folder")
def folder_fixture(tmp_path) -> Path:
    return tmp_path / f"tensorflow-mpi-{os.getuid()}"


def test_a_file_is_shared_in_a_private_folder(private, folder):
    one, other = private.open_file("turn"), private.open_file("turn")
    os.write(one, b"said")
    assert os.read(other, 10) == b"said"
    assert folder.stat().st_mode & 0o7777 == 0o700
    assert (folder / "turn").stat().st_mode & 0o7777 == 0o600


@pytest.mark.parametrize("mode", [0o701, 0o750, 0o777])
def test_a_folder_with_access_for_others_is_refused(private, folder, mode):
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(PermissionError, match="is accessible to others: remove it, or set TMPDIR"):
        private.open_file("turn")


def test_a_link_is_refused(private, folder, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="is not a folder"):
        private.open_file("turn")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_link_instead_of_a_file_is_not_followed(private, folder, tmp_path):
    folder.mkdir(mode=0o700)
    (folder / "turn").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic links"):
        private.open_file("turn")
    assert not (tmp_path / "precious").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")
def test_another_users_folder_is_refused(private, folder):
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)
    with pytest.raises(PermissionError, match="belongs to user 12345"):
        private.open_file("turn")


def test_a_digest_changes_with_the_file(private, tmp_path):
    file, folder = tmp_path / "data" / "file", tmp_path / "data"
    folder.mkdir()
    file.write_bytes(b"abc")
    of_file, of_folder = private.digest(str(file)), private.digest(str(folder))
    file.write_bytes(b"abd")
    assert private.digest(str(file)) != of_file
    assert private.digest(str(folder)) == of_folder
    folder.rename(tmp_path / "before")
    folder.mkdir()
    assert private.digest(str(folder)) != of_folder
