"""The lines and errors about files, tested in this process with made-up ranks."""

from __future__ import annotations

import errno
import math
import os
import subprocess
import sys
import types
from typing import Any
from unittest import mock

import pytest

from extras import load


@pytest.fixture(name="explanations", scope="module")
def explanations_fixture() -> Any:
    return load("tensorflow.mpi._src.files.explanations")


def test_a_failed_file_call_is_explained_with_a_remedy(explanations, monkeypatch, tmp_path):
    monkeypatch.setattr(explanations.group, "group_size", 2)
    explain = explanations.explanation
    locked = explain(OSError("Unable to create file (unable to lock file, errno = 11)"))
    assert locked.startswith(
        "all 2 ranks open a file to change it, but HDF5 allows only one writer: "
    )
    monkeypatch.setattr(explanations.saves, "shared", lambda: True)
    locked = explain(OSError("Unable to create file (unable to lock file, errno = 11)"))
    assert locked.endswith(
        "rank 0 only (if tf.mpi.rank() == 0), or create it: h5py.File(path, 'w')"
    )
    busy = explain(RuntimeError("database is locked"))
    assert busy.startswith(
        "all 2 ranks write to one database, but SQLite allows only one writer at a"
    )
    is_there = FileExistsError(errno.EEXIST, "File exists", str(tmp_path))
    monkeypatch.setattr(explanations, "_started", math.inf)  # the folder is older than the run
    assert explain(is_there) is None
    monkeypatch.setattr(explanations, "_started", 0.0)
    there = explain(is_there)
    assert f"'{tmp_path}' was created during this run. Create it with exist_ok=True, or" in there
    gone = explain(FileNotFoundError(errno.ENOENT, "No such file", str(tmp_path / "gone")))
    assert "existed, another rank has removed or renamed it. Do that on rank 0 only" in gone
    command = explain(subprocess.CalledProcessError(1, ["mv", "a", "b"]))
    assert command.startswith(
        "all 2 ranks run the script's commands, so another rank may have been first."
    )
    assert explain(ValueError("something else")) is None


def test_a_lock_does_not_show_a_file_that_is_written_by_its_descriptor(monkeypatch, tmp_path):
    writes = load("tensorflow.mpi._src.files.writes")
    monkeypatch.setattr(writes.atomic.saves, "shared", lambda: True)
    locks = writes.locking(lambda file, operation: None)
    path = tmp_path / "data"
    with writes.opening(open)(path, "wb") as file:
        descriptor = file.fileno()
        file.write(b"one ")
        file.flush()
        locks(file, 0)
        file.flush()
        assert not path.exists()
        os.write(descriptor, b"two")
    assert path.read_bytes() == b"one two"


@pytest.fixture(name="downloads", scope="module")
def downloads_fixture() -> Any:
    return load("tensorflow.mpi._src.files.downloads")


def test_a_download_that_has_changed_is_fetched_again(downloads, monkeypatch, tmp_path):
    said: list[str] = []
    monkeypatch.setattr(downloads.log, "say", said.append)
    note = tmp_path / "note"
    note.write_text('[[1, 0], "/data/x.npz", "a digest"]')
    monkeypatch.setattr(downloads.private, "digest", lambda path: "another digest")
    with note.open("rb") as file:
        assert downloads._fetched(file.fileno(), [1, 0]) is None
    assert said == [
        "'/data/x.npz' has changed since another rank of this node fetched it: fetching again"
    ]


def test_a_turn_that_does_not_come_is_reported_and_then_an_error(downloads, monkeypatch):
    """It says whom the rank waits for, and then how to avoid the wait."""

    def is_taken(*_: Any) -> None:
        raise BlockingIOError

    said: list[str] = []
    now = iter(range(100))
    monkeypatch.setattr(downloads.log, "say", said.append)
    monkeypatch.setattr(downloads.fcntl, "flock", is_taken)
    monkeypatch.setattr(downloads.time, "monotonic", lambda: float(next(now)))
    monkeypatch.setattr(downloads.time, "sleep", lambda _: None)
    monkeypatch.setattr(downloads.errors, "error_from_code", lambda code, text: RuntimeError(text))
    monkeypatch.setenv("TF_MPI_STALL_WARNING", "2")
    monkeypatch.setenv("TF_MPI_STALL_TIMEOUT", "4")
    way_out = "get_file.*; fetch the file before the run, or increase TF_MPI_STALL_TIMEOUT"
    with pytest.raises(RuntimeError, match=way_out):
        downloads._wait_for(0, "('x.npz',)")
    line = "rank 0 has waited 2 s for another process on this node to finish get_file('x.npz',)"
    assert said == [line]


@pytest.fixture(name="waits")
def waits_fixture(monkeypatch: pytest.MonkeyPatch) -> Any:
    """files/waits.py in a run where rank 0 has saved nothing."""
    waits = load("tensorflow.mpi._src.files.waits")
    library = types.SimpleNamespace(tfmpi_missed=lambda: 0)
    monkeypatch.setattr(waits.c_api, "load", lambda: library)
    monkeypatch.setattr(waits, "_read", lambda: None)
    monkeypatch.setattr(waits.errors, "error_from_code", lambda code, text: RuntimeError(text))
    monkeypatch.setattr(waits.group, "rank", 1)
    monkeypatch.setattr(waits.group, "size", 2)
    return waits


def save(waits: Any, monkeypatch: Any, posts: dict[str, int], why: str = "") -> Any:
    monkeypatch.setattr(waits, "_posted", lambda name: posts.get(name, 0))
    monkeypatch.setattr(waits, "_value", lambda name, number: why)
    return waits._Wait("save", "/tmp/model", None)


def test_a_save_that_rank_0_does_not_make_is_an_error(waits, monkeypatch):
    one = save(waits, monkeypatch, {})
    assert one.describe(7).startswith(
        "rank 1 has waited 7 s for rank 0 to save '/tmp/model' (save number 1"
    )
    assert "Save under the same path on all ranks" in one.describe(7)
    monkeypatch.setattr(waits, "_posted", lambda name: 99 if name == waits._RANK_0_WAITS else 0)
    with pytest.raises(
        RuntimeError, match="saves '/tmp/model', but rank 0 has continued without saving it"
    ):
        one.is_over()
    monkeypatch.setattr(waits, "_posted", lambda name: int(name == waits._ENDED))
    with pytest.raises(RuntimeError, match="but rank 0's script has ended without saving it"):
        one.is_over()
    monkeypatch.setattr(waits, "_value", lambda name, number: "ValueError: no such layer")
    with pytest.raises(RuntimeError, match="rank 0/2 has stopped: ValueError: no such layer"):
        one.is_over()


def test_a_save_that_takes_too_long_is_an_error(waits, monkeypatch):
    monkeypatch.setenv("TF_MPI_STALL_TIMEOUT", "1")
    monkeypatch.setattr(waits, "_posts_received", lambda: 0)
    monkeypatch.setattr(waits.presence, "follow", lambda: False)
    with pytest.raises(RuntimeError, match="If rank 0 is only slow, raise TF_MPI_STALL_TIMEOUT"):
        waits._wait(save(waits, monkeypatch, {}))


def test_a_save_under_another_name_does_not_hide_one_that_is_missing(waits, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(waits.log, "say", said.append)
    monkeypatch.setattr(waits.names, "map_folders", lambda path, other: None)
    monkeypatch.setattr(waits.names, "link_to_rank_0", lambda path, other, kept: True)
    one = save(waits, monkeypatch, {})
    monkeypatch.setattr(waits, "_rank_0", [waits._Save("", "save", "/tmp/other", "", "", "")])
    monkeypatch.setattr(waits, "_matched", {0})
    one._match(0)
    assert "which refers to the same file until the process exits" in said[0]
    one.section = "fit"  # in whose callbacks rank 0 has saved something else
    monkeypatch.setattr(waits, "_posted", lambda name: int(name == waits._LEFT + "fit"))
    assert one.is_over()
    assert "but rank 0 has not saved it; nothing was written. Save under the same path" in said[1]


def test_a_save_that_is_not_visible_on_this_node_is_reported(waits, monkeypatch, tmp_path):
    said: list[str] = []
    monkeypatch.setattr(waits.log, "say", said.append)
    monkeypatch.setattr(waits, "_SHARED_SECONDS", 0.0)
    waits._warn_if_missing(str(tmp_path / "gone"), str(tmp_path / "model"))
    assert (
        f"rank 0 has saved '{tmp_path}/model', but 0 s later it does not exist on node " in said[0]
    )
    assert "the nodes do not share its folder" in said[0]
    assert "Save to a folder that all nodes share, or set TF_MPI_IO=all" in said[0]


def test_a_backup_that_another_rank_could_not_read_is_an_error(monkeypatch):
    keras_files = load("tensorflow.mpi._src.files.keras_files")
    failed = {"error": "OSError: truncated file"}
    monkeypatch.setattr(keras_files, "_progress", lambda self: {"epoch": 2})
    monkeypatch.setattr(keras_files.control_plane, "headers", lambda label, mine: [mine, failed])
    begin = keras_files.agreeing_on_backup(lambda self: None)
    words = "BackupAndRestore could not restore '/tmp/backup' on rank 1: OSError: truncated file"
    with pytest.raises(RuntimeError, match=words):
        begin(types.SimpleNamespace(backup_dir="/tmp/backup"))


@pytest.mark.parametrize("name", ["removing_backup", "removing_tf_keras_backup"])
def test_the_removal_of_a_backup_is_named(monkeypatch, name):
    """Messages about a save name its path."""
    keras_files = load("tensorflow.mpi._src.files.keras_files")
    monkeypatch.setattr(keras_files.saves, "on_rank_0", lambda function, path, result: path)
    manager = types.SimpleNamespace(directory="/tmp/backup")
    backup = types.SimpleNamespace(backup_dir="/tmp/backup", write_checkpoint_manager=manager)
    path = getattr(keras_files, name)(lambda self, logs=None: None)
    assert path(backup, logs={}) == "/tmp/backup (end of training)"


@pytest.mark.parametrize("paths", [("a",), ("a", None, "b")])
def test_an_error_of_the_system_keeps_its_paths(monkeypatch, paths):
    failures = load("tensorflow.mpi._src.files.failures")
    monkeypatch.setattr(failures, "_create", lambda kind, _, args: kind(*args))
    error = OSError(errno.EXDEV, "Invalid cross-device link", *paths)
    again = failures.decode(failures.describe(error), RuntimeError("rank 0 could not save"))
    assert str(again) == str(error)


def test_a_failure_that_cannot_be_created_here_is_its_cause(monkeypatch):
    failures = load("tensorflow.mpi._src.files.failures")
    monkeypatch.setitem(sys.modules, "tensorflow.python.framework", mock.MagicMock())
    monkeypatch.setattr(failures, "_create", lambda kind, *_: kind("no space"))
    cause = RuntimeError("rank 0 could not save")
    described = failures.describe(ValueError("no space"))
    again = failures.decode(described, cause)
    assert type(again) is ValueError and again.__cause__ is cause
    monkeypatch.setattr(failures, "_create", lambda *_: TypeError("another"))
    assert failures.decode(described, cause) is cause


def test_files_in_shared_memory_appear_when_complete_and_devices_do_not(monkeypatch):
    atomic = load("tensorflow.mpi._src.files.atomic")
    monkeypatch.setattr(atomic.saves, "shared", lambda: True)
    assert atomic.applies("/dev/shm/no such file")
    assert not atomic.applies("/dev/null")
