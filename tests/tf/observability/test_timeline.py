"""TF_MPI_TIMELINE: the trace of all ranks and its account of a step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from trace_events import Event, Trace, end

from launch import LaunchResult

pytestmark = [pytest.mark.alone, pytest.mark.full]
RANKS, STEPS = 2, 15
LAYERS = ("w0", "w1")  # the others are submitted together
Launch = Callable[..., LaunchResult]


@pytest.fixture(scope="module", name="trace")
def trace_fixture(launch: Launch, scripts: Path, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    env = {"TF_MPI_TIMELINE": str(path)}
    launch(scripts / "timeline.py", np=RANKS, args=[str(STEPS)], env=env).check()
    assert [file.name for file in path.parent.iterdir()] == ["trace.json"]
    return Trace(path)


def of_tensor(trace: Trace, rank: int, stage: str, name: str) -> list[Event]:
    return [e for e in trace.named(rank, stage) if variable(e["args"]["tensor"]) == name]


def variable(tensor: str) -> str:
    """A gradient is named after its variable and, if averaged there, its optimizer op."""
    return tensor.split(" (")[0]


def test_every_rank_has_its_tracks(trace: Trace) -> None:
    assert trace.dropped == 0
    assert sorted(trace.processes) == list(range(RANKS))
    for rank in range(RANKS):
        assert trace.processes[rank].startswith(f"rank {rank} (")
        tracks = trace.complete[rank]
        assert {"steps", "communication"} < set(tracks)
        assert any(track.startswith("thread tf_Compute") for track in tracks)
        # No "unpack": these averages stay where they were packed and reduced.
        assert {"pack", "reduce"} < {event["name"] for event in tracks["communication"]}


def test_every_gradient_passes_all_stages_in_order(trace: Trace) -> None:
    for rank in range(RANKS):
        responses = {
            event["args"]["response"]: event
            for event in trace.complete[rank]["communication"]
            if "response" in event["args"]
        }
        waits: dict[str, list[tuple[Event, Event]]] = {}
        for begin, ended in trace.waits[rank]:
            waits.setdefault(variable(begin["args"]["tensor"]), []).append((begin, ended))
        for name in LAYERS:
            ways = zip(
                of_tensor(trace, rank, "submit", name),
                waits[name],
                of_tensor(trace, rank, "apply", name),
                strict=True,
            )
            count = 0
            for submit, (begin, ended), applied in ways:
                response = responses[begin["args"]["response"]]
                assert submit["args"]["tensor"] == begin["args"]["tensor"]
                assert submit["args"]["tensor"] in response["args"]["tensors"]
                bytes_ = submit["args"]["bytes"]
                assert bytes_ == applied["args"]["bytes"] == begin["args"]["bytes"]
                assert bytes_ <= response["args"]["bytes"]
                assert submit["ts"] <= begin["ts"] <= end(submit)
                assert ended["ts"] <= response["ts"] < end(response)
                assert response["ts"] < applied["ts"]
                count += 1
            assert count == STEPS


def test_fused_responses_list_their_tensors(trace: Trace) -> None:
    for rank in range(RANKS):
        held = [
            event["args"]["tensors"]
            for event in trace.complete[rank]["communication"]
            if len(event["args"].get("tensors", ())) > 1
        ]
        small = [names for names in held if all(name.startswith("small") for name in names)]
        assert small and all(len(names) == len(set(names)) for names in held)


def test_clocks_of_all_ranks_agree(trace: Trace) -> None:
    """Collective operations overlap in time on all ranks."""
    assert trace.share_of_responses_at_one_time() > 0.9


def test_communication_overlaps_with_the_backward_pass(trace: Trace) -> None:
    """The second layer's 16 MB travel before the first layer's gradient is ready."""
    for rank in range(RANKS):
        steps = [e for e in trace.complete[rank]["steps"] if e["name"].startswith("step ")]
        backward = trace.named(rank, "backward, first to last gradient")
        assert len(steps) == len(backward) >= STEPS
        assert trace.named(rank, "until the first gradient")
        reduces = [e for e in trace.named(rank, "reduce") if e["args"]["bytes"] > 2**24 - 1]
        last_submits = of_tensor(trace, rank, "submit", "w0")
        inside = 0
        for submit, span in zip(last_submits, backward):
            assert span["ts"] <= submit["ts"] <= end(span) + 1
            inside += any(span["ts"] < e["ts"] and end(e) < submit["ts"] for e in reduces)
        # If submitted together there is no overlap. A rank whose core is busy arrives too late, and
        # a delayed thread may submit the last layer's gradient after the first's.
        assert inside >= 2


def test_ranks_that_do_not_end_together_write_separate_traces(
    launch: Launch, scripts: Path, tmp_path: Path
) -> None:
    env = {"TF_MPI_TIMELINE": str(tmp_path / "trace.json")}
    # The others wait in a step that never starts, fail, and end before mpirun kills them.
    result = launch(scripts / "timeline.py", args=["3", "fail"], env=env, timeout=60)
    assert result.returncode != 0
    written = Trace(tmp_path / "trace.rank1.json")
    assert list(written.processes) == [1]
    assert len(of_tensor(written, 1, "apply", "w0")) == 3
    line = f"this rank ended with an error; its own timeline is in {tmp_path}/trace.rank1"
    assert line in result.stderr[1]
    assert not (tmp_path / "trace.json").exists()


@pytest.mark.parametrize("place", ["no/trace.json", "."])
def test_a_trace_file_that_cannot_be_written_is_refused_at_the_start(
    launch: Launch, scripts: Path, tmp_path: Path, place: str
) -> None:
    env = {"TF_MPI_TIMELINE": str(tmp_path / place)}
    result = launch(scripts / "timeline.py", args=["1"], env=env, timeout=60)
    assert result.returncode != 0
    assert "in a folder that exists" in result.stderr[0]
