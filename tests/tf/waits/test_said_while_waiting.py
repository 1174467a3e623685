"""The lines about ranks that this one waits for, tested in this process with made-up ranks."""

from __future__ import annotations

import io
import itertools
import os
import subprocess
import sys
import types
from typing import Any

import pytest

from extras import load

THEN = "; this rank ends after TF_MPI_STALL_TIMEOUT, 60 s"


class Ended(Exception):
    """Replaces the end of the process."""


def _end(self: Any, why: str, speaks: bool) -> None:
    raise Ended(why)


@pytest.fixture(name="loaded", scope="module")
def loaded_fixture() -> Any:
    return load("tensorflow.mpi._src.presence.watch")


@pytest.fixture(name="watch")
def watch_fixture(monkeypatch: pytest.MonkeyPatch, loaded: Any) -> Any:
    """presence/watch.py with waits that never end and are always due."""
    watch = loaded
    monkeypatch.setenv("TF_MPI_STALL_TIMEOUT", "60")
    monkeypatch.setattr(watch._Wait, "is_due", lambda self, warning: True)
    monkeypatch.setattr(watch._Wait, "waited", lambda self: 5.0)
    now = itertools.count(0.0, 1.5)  # one poll per second at the start
    monkeypatch.setattr(watch.time, "monotonic", now.__next__)
    monkeypatch.setattr(watch._Wait, "end", _end)
    monkeypatch.setattr(watch.config, "is_off_elsewhere", lambda: False)
    monkeypatch.setattr(watch.peers, "sees_siblings", lambda: False)
    return watch


def peer(watch: Any, rank: int, **facts: Any) -> Any:
    process = {"pid": 100 + rank, "command": "python train.py", "script": "train.py"}
    process |= {"stopped": False, "off": False, "ours": False, "tensorflow": False, "seconds": 1.0}
    return watch.peers.Peer(rank, (watch.peers.Process(**process | facts),))


def starting(watch: Any, monkeypatch: Any, known: dict[int, Any], size: int, local: int) -> Any:
    monkeypatch.setattr(watch.c_api, "start_waits_for", lambda: "all ranks to arrive in MPI_Init")
    told = watch.config.Launcher("Open MPI's mpirun", size, 0, local, abis=("openmpi",))
    start = watch._Start(told)
    start.node = types.SimpleNamespace(peers=lambda: known)
    return start


def library(posts: list[bytes] | None = None) -> Any:
    """The library of a group without deaths, in which rank 0 has sent these posts."""
    sent: list[bytes] = [] if posts is None else posts
    return types.SimpleNamespace(
        tfmpi_generation=lambda: 0, tfmpi_posted=sent.count, tfmpi_post=sent.append
    )


def said(capsys: Any) -> str:
    return str(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, "has not imported tensorflow"),
        ({"off": True}, "was started with TF_MPI_ENABLE=0"),
        ({"stopped": True}, "is stopped, for example by SIGSTOP"),
        ({"tensorflow": True}, "runs TensorFlow without averaging: TF_MPI_ENABLE=0 there, or"),
    ],
)
def test_a_wait_at_the_start_says_what_a_late_rank_does(watch, monkeypatch, capsys, facts, words):
    known = {0: peer(watch, 0, ours=True), 1: peer(watch, 1, **facts)}
    starting(watch, monkeypatch, known, 2, 2).poll()
    line = "tensorflow.mpi rank 0/2: has waited 5 s for all ranks to arrive in MPI_Init (rank 1 "
    assert said(capsys).startswith(f"{line}(process 101, 'python train.py') {words}")


def test_a_wait_at_the_start_names_ranks_that_are_not_visible(watch, monkeypatch, capsys):
    known = {0: peer(watch, 0, ours=True)}
    starting(watch, monkeypatch, known, 3, 3).poll()
    assert "(no process of ranks 1 and 2 is visible on this node)" + THEN in said(capsys)
    starting(watch, monkeypatch, known, 3, 1).poll()
    text = said(capsys)
    assert "2 ranks are not visible from this node, " in text
    assert "ranks with TF_MPI_ENABLE=0 do not join; mpirun passes that to other nodes only" in text
    starting(watch, monkeypatch, known, 2, 1).poll()
    assert "1 rank is not visible from this node, " in said(capsys)


@pytest.mark.parametrize(("off", "were"), [((1,), "was"), ((1, 2), "were")])
def test_a_start_without_ranks_that_are_off_ends(watch, monkeypatch, off, were):
    known = {0: peer(watch, 0, ours=True)} | {rank: peer(watch, rank, off=True) for rank in off}
    start = starting(watch, monkeypatch, known, 3, 3)
    start.poll()
    with pytest.raises(Ended, match=rf"\) {were} started with TF_MPI_ENABLE=0; use the same value"):
        for _ in range(9):
            start.poll()


def test_a_start_that_cannot_succeed_ends_the_rank(watch, monkeypatch):
    monkeypatch.setattr(watch.config, "is_off_elsewhere", lambda: True)
    words = "ranks on another node were started with TF_MPI_ENABLE=0; to pass that variable to all"
    with pytest.raises(Ended, match=words):
        starting(watch, monkeypatch, {}, 2, 1).poll()


def test_a_rank_that_gives_up_says_why(loaded, monkeypatch, capsys):
    def leave(code: int) -> None:
        raise Ended(str(code))

    monkeypatch.setattr(loaded.os, "_exit", leave)
    with pytest.raises(Ended, match="1"):
        loaded._Wait(0, 2).end("cannot start without the others", speaks=True)
    line = "tensorflow.mpi rank 0/2: cannot start without the others; this rank ends\n"
    assert said(capsys) == line


def test_a_rank_gives_up_even_if_its_script_has_closed_its_output(loaded, monkeypatch):
    def leave(code: int) -> None:
        raise Ended(str(code))

    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(loaded.os, "_exit", leave)
    for stream in (closed, object(), None):
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "stderr", stream)
        with pytest.raises(Ended, match="1"):
            loaded._Wait(0, 2).end("cannot start without the others", speaks=True)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"seconds": 1.0}, "(rank 1 (process 101, 'python train.py') is idle)" + THEN),
        ({"seconds": 90.0}, "(rank 1 (process 101, 'python train.py') is at work)\n"),
        *(
            (
                {"stopped": True, "seconds": seconds},
                "(rank 1 (process 101, 'python train.py') is stopped, for example by SIGSTOP)"
                + THEN,
            )
            for seconds in (1.0, 90.0)
        ),
    ],
)
def test_a_wait_at_the_end_says_what_the_others_do(watch, monkeypatch, capsys, facts, words):
    api = types.SimpleNamespace(
        joined=lambda: {0},
        stats=lambda: {"collectives": 3},
        topology=lambda: (0, 2, 0, 2, 1),
        load=lambda: library(),
    )
    monkeypatch.setattr(watch, "c_api", api)
    monkeypatch.setenv("TF_MPI_STALL_WARNING", "1")
    end = watch._End(0, 2)
    for seconds in (1.0, 1.0, facts.get("seconds", 1.0)):
        known = {1: peer(watch, 1, ours=True, **facts | {"seconds": seconds})}
        end.node = types.SimpleNamespace(peers=lambda known=known: known)
        end.poll()
    begins = (
        "tensorflow.mpi rank 0/2: its script has ended, and it has waited 5 s for the script of "
    )
    text = said(capsys).splitlines(keepends=True)[-1]
    assert text.startswith(begins + "rank 1 to end ") and words in text


def test_a_rank_that_runs_short_programs_is_at_work(loaded):
    """Their processor time remains after they have ended."""
    before = loaded.peers.stat(os.getpid()).seconds
    program = "import time\nwhile time.process_time() < 0.5: pass"
    subprocess.run([sys.executable, "-c", program], check=True)
    assert loaded.peers.stat(os.getpid()).seconds - before >= 0.4


def test_a_rank_0_that_is_not_visible_says_that_it_is_at_work(watch, monkeypatch, capsys):
    """The ranks of another node wait while it works, and end when it no longer does."""
    posts: list[bytes] = []
    monkeypatch.setenv("TF_MPI_STALL_WARNING", "1")
    awaited, end = watch._AwaitedEnd(0, 2), watch._End(1, 2)
    polled: Any = awaited
    api = types.SimpleNamespace(
        joined=lambda: {1},
        stats=lambda: {"collectives": 3},
        topology=lambda: (int(polled is end), 2, 0, 1, 2),
        load=lambda: library(posts),
    )
    monkeypatch.setattr(watch, "c_api", api)
    monkeypatch.setattr(watch.reasons, "place_of_main_thread", lambda: None)
    end.node = types.SimpleNamespace(peers=dict)
    seconds = 0.0
    awaited.node = types.SimpleNamespace(peers=lambda: {0: peer(watch, 0, seconds=seconds)})

    for _ in range(100):
        seconds += 5.0
        for polled in (awaited, end):
            polled.poll()
    text = said(capsys)
    assert "for the script of rank 0 to end (rank 0 is at work)\n" in text
    with pytest.raises(Ended, match="for the script of rank 0 to end$"):
        for _ in range(100):
            for polled in (awaited, end):
                polled.poll()


def test_a_wait_for_mpi_at_the_end_is_reported(watch):
    text = watch._End(0, 2)._report({}, [], set())
    assert text.endswith("has waited 5 s for MPI to end; the scripts of all ranks have ended")


def test_exchanges_of_the_script_are_named(monkeypatch):
    """A message about a wait for one of them has this name."""
    collectives = load("tensorflow.mpi._src.messaging.collectives")
    monkeypatch.setattr(collectives.presence, "uses", lambda: None)
    assert collectives.meeting_name("barrier", None) == "barrier without a name"
    assert collectives.meeting_name("barrier", "epoch") == "barrier epoch"


def test_a_barrier_or_broadcast_does_not_mean_that_the_script_averages_by_itself(monkeypatch):
    collectives = load("tensorflow.mpi._src.messaging.collectives")
    monkeypatch.setattr(collectives.presence, "uses", lambda: None)
    for kind in ("barrier", "broadcast"):
        collectives.meeting_name(kind, None)
    assert not collectives.combined_by_script
    for kind in ("allreduce", "barrier"):
        collectives.meeting_name(kind, None)
    assert collectives.combined_by_script


def test_a_rank_that_others_wait_for_says_where_its_script_is(watch, monkeypatch, capsys):
    api = types.SimpleNamespace(
        joined=lambda: {0, 2}, stats=lambda: {"collectives": 3}, topology=lambda: (1, 3, 0, 1, 3)
    )
    monkeypatch.setattr(watch, "c_api", api)
    monkeypatch.setattr(watch.reasons, "place_of_main_thread", lambda: "train.py:8 in export")
    awaited = watch._AwaitedEnd(1, 3)
    awaited.poll()
    assert said(capsys) == ""
    awaited.poll()
    assert said(capsys) == (
        "tensorflow.mpi rank 1/3: ranks 0 and 2 have waited 5 s or longer for this rank's script "
        "to end; it is at train.py:8 in export\n"
    )
