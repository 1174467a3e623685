"""A file that replaces the one at its path once it is complete."""

from __future__ import annotations

import os

import pytest

from extras import load


@pytest.mark.parametrize("named", [False, True])
def test_a_file_on_a_file_system_without_modes(monkeypatch, tmp_path, named):
    def refuse(*_: object) -> None:
        raise PermissionError

    atomic = load("tensorflow.mpi._src.files.atomic")
    monkeypatch.setattr(os, "fchmod", refuse)
    before = os.listdir("/proc/self/fd")
    file = atomic.AtomicFile(str(tmp_path / "file"), named)
    os.write(file.descriptor, b"new")
    file.close()
    assert os.listdir("/proc/self/fd") == before
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"new"
