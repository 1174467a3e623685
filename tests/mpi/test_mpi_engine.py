"""The engine with the installed MPI transport under mpirun, without TensorFlow."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from launch import LaunchResult, LaunchTimeout
from tiers import full

ROOT = Path(__file__).resolve().parents[2]
TRANSPORT = "libtfmpi_transport_openmpi.so"
BUILT = ROOT / ".cache" / "bazel-bin" / "tests" / "mpi"
SAYS_CUDA = "libsays_cuda.so"  # preloaded, makes an MPI claim to be CUDA-aware
FAULTY = "libfaulty_mpi.so"  # preloaded, makes a function of MPI misbehave
UNAVAILABLE, DEADLINE_EXCEEDED = 5, 4  # Code of core/base/status.h


def _transport() -> Path:
    """The installed wheel's transport library, found without importing TensorFlow."""
    spec = importlib.util.find_spec("tensorflow")
    assert spec is not None and spec.submodule_search_locations, "TensorFlow is not installed"
    return Path(spec.submodule_search_locations[0]) / "mpi" / "lib" / TRANSPORT


@pytest.fixture(scope="session")
def engine_mpi() -> list[Path]:
    """The test program, built by Bazel, and the transport for it."""
    targets = [f"//tests/mpi:{name}" for name in ("engine_mpi", SAYS_CUDA, FAULTY)]
    build = subprocess.run(
        ["bazel", "--batch", "build", *targets],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert build.returncode == 0, build.stderr[-4000:]
    return [BUILT / "engine_mpi", _transport()]


Run = Callable[..., LaunchResult]


@pytest.fixture(name="run")
def run_fixture(launch: Callable[..., LaunchResult], engine_mpi: Sequence[Path]) -> Run:
    """run(mode, rank, np=..., timeout=..., ranks_per_node=...) -> the result of engine_mpi."""
    paths = [str(Path(sys.prefix) / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    env = {"LD_LIBRARY_PATH": ":".join(path for path in paths if path)}

    def run(
        mode: str,
        rank: int = 0,
        *,
        np: int,
        timeout: float = 120,
        ranks_per_node: int = 0,
        ulfm: bool = False,
        shrink_on_fault: bool = False,
        says_cuda: str | None = None,
        faulty: str | None = None,
    ) -> LaunchResult:
        shape = {
            "RANKS_PER_NODE": str(ranks_per_node),
            "SHRINK_ON_FAULT": "1" if shrink_on_fault else None,
        }
        preloaded = []
        if says_cuda is not None:
            preloaded.append(str(BUILT / SAYS_CUDA))
            shape["SAYS_CUDA"] = says_cuda
        if faulty is not None:
            preloaded.append(str(BUILT / FAULTY))
            shape["FAULTY"] = faulty
        if preloaded:
            shape["LD_PRELOAD"] = ":".join(preloaded)
        return launch(
            [*engine_mpi, mode, str(rank)],
            np=np,
            env=env | shape,
            timeout=timeout,
            mpirun_args=("--with-ft", "ulfm") if ulfm else (),
        )

    return run


# The last three: two nodes of two ranks; nodes of two ranks and one; more nodes than rank 0 has
# children.
@pytest.mark.parametrize(
    "np, ranks_per_node",
    [
        (1, 0),
        (2, 0),
        (2, 1),
        full(3, 0),
        full(4, 0),
        full(3, 1),
        (4, 2),
        full(3, 2),
        full(12, 1),
    ],
)
def test_all_results_are_correct_and_the_ranks_end_normally(
    run: Run, np: int, ranks_per_node: int
) -> None:
    # 12 ranks on 2 cores are slow, with other tests at the same time.
    how = {"np": np, "ranks_per_node": ranks_per_node, "timeout": 60 + 20 * np}
    results = run("check", **how).check().results
    assert [(one["rank"], one["size"]) for one in results] == [(rank, np) for rank in range(np)]
    # Rank r takes r more steps of 3 tensors.
    assert [one["completed"] - results[0]["completed"] for one in results] == [
        3 * rank for rank in range(np)
    ]


@pytest.mark.parametrize("leaving", [full(0), 1, full(2)])
def test_a_rank_that_leaves_passes_its_reason_to_the_others(run: Run, leaving: int) -> None:
    result = run("leave", leaving, np=3, timeout=60)
    assert result.returncode != 0
    assert result.wall < 30
    for rank, one in enumerate(result.results):
        if rank == leaving:
            assert one["left"]
            continue
        assert one["code"] == UNAVAILABLE
        assert one["message"] == f"rank {leaving}/3 has stopped: ValueError: no more data"
        assert one["waited"] < 2


@pytest.mark.parametrize("killed", [full(0), 1])
def test_no_rank_outlives_a_peer_that_was_killed(run: Run, killed: int) -> None:
    # mpirun itself returns only when its ranks have ended; a survivor would exceed the deadline.
    result = run("kill", killed, np=3, timeout=60)
    assert result.returncode != 0
    assert result.wall < 30, "the survivors waited for a timeout instead"


def test_a_rank_that_stops_responding_is_named(run: Run) -> None:
    try:
        result = run("stop", 1, np=3, timeout=60)
    except LaunchTimeout as error:
        raise AssertionError("the others waited forever for a stopped rank") from error
    assert result.returncode != 0
    for rank in (0, 2):
        lines = [line for line in result.stdout[rank].splitlines() if line.startswith("RESULT")]
        assert len(lines) == 1, result.report()
        assert f'"code": {DEADLINE_EXCEEDED}' in lines[0] or f'"code": {UNAVAILABLE}' in lines[0]
        assert "rank 1 " in lines[0] or "did not end in time" in lines[0], lines[0]


def left(result: LaunchResult) -> list[dict[str, Any]]:
    """The results of the ranks that survived."""
    lines = "".join(result.stdout).splitlines()
    return [json.loads(line[len("RESULT ") :]) for line in lines if line.startswith("RESULT ")]


# Without the last step of a rank that dies during it, the others have other samples.
NEAR = 0.01


# All but one rank die, on one node, and between nodes of one rank and of two.
@pytest.mark.parametrize(
    "seed, np, ranks_per_node",
    [
        (1, 4, 0),
        full(2, 4, 1),
        full(3, 4, 2),
        *(full(seed, 8, 0) for seed in (4, 5, 6)),
        *(full(seed, 3, 0) for seed in (7, 8)),
    ],
)
def test_survivors_continue_with_equal_results(
    run: Run, seed: int, np: int, ranks_per_node: int
) -> None:
    result = run("storm", seed, np=np, ranks_per_node=ranks_per_node, ulfm=True)
    survivors = left(result)
    assert survivors, result.report()
    assert result.returncode == 0, result.report()
    assert len({one["digest"] for one in survivors}) == 1, survivors
    for one in survivors:
        assert one["size"] == len(survivors), result.report()
        assert one["joined"] == ""
        assert one["difference"] < NEAR, survivors
        assert abs(one["model"] - 1) < NEAR
    assert survivors[0]["deaths"] >= 1
    said = [line for text in result.stderr for line in text.splitlines() if "has died" in line]
    assert said, result.report()


def test_missing_fault_tolerance_is_reported_at_the_start(run: Run) -> None:
    result = run("check", np=2, shrink_on_fault=True)
    assert result.returncode != 0
    reasons = (
        "this MPI has no fault tolerance (ULFM); Open MPI 5 has it",
        "the job was started without fault tolerance (mpirun --with-ft ulfm)",
    )
    said = result.stderr[0]
    assert any(f"TF_MPI_FAULT=shrink is not possible: {why}. Start" in said for why in reasons)


LATE = "did not end in time: a peer has died or does not take part"
ACROSS = {"ranks_per_node": 1}  # over MPI


@pytest.mark.parametrize(
    ("faulty", "mode", "how", "words"),
    [
        ("MPI_Irecv", "exchange", {"says_cuda": "1"}, "MPI_Irecv into memory of a GPU failed: "),
        ("MPI_Isend", "exchange", {"says_cuda": "1"}, "MPI_Isend from memory of a GPU failed: "),
        ("MPI_Irecv", "check", ACROSS, "starting an exchange failed: "),
        ("MPI_Testall", "stop", ACROSS, f"an exchange of gradients {LATE}"),
        full("MPI_Imrecv", "check", ACROSS, f"receiving a control message {LATE}"),
        full("last", "check", ACROSS, f"sending the last message {LATE}"),
        full(
            *("MPIX_Comm_iagree", "storm", {"ulfm": True}),
            "a rank has died, and the others could not continue without it: the agreement of the "
            f"survivors {LATE}",
        ),
        (
            *("shm_open", "check", {}),
            "bytes of memory (/dev/shm; another rank of the node failed); free space there, or set "
            "TF_MPI_TOPOLOGY=flat, which does not need it",
        ),
    ],
)
def test_a_fault_of_mpi_is_named(
    run: Run, faulty: str, mode: str, how: dict[str, Any], words: str
) -> None:
    nobody = 99  # is to stop
    result = run(mode, nobody, np=2, faulty=faulty, **how)
    assert result.returncode != 0
    assert words in "".join([*result.stdout, *result.stderr]), result.report()


@pytest.mark.full
def test_fault_tolerance_changes_nothing_else(run: Run) -> None:
    results = run("check", np=4, ulfm=True, shrink_on_fault=True).check().results
    assert [one["size"] for one in results] == [4] * 4


@pytest.mark.full
def test_timings(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Prints a table. Never fails because of speed, which depends on the machine."""
    result = run("time", np=2, timeout=300).check()
    with capsys.disabled():
        print("\n" + result.stdout[0])
    assert "104857600" in result.stdout[0]


@pytest.mark.parametrize("np", [full(1), 2, full(3), full(4)])
def test_gpu_memory_is_exchanged_if_mpi_is_cuda_aware(run: Run, np: int) -> None:
    results = run("exchange", np=np, says_cuda="1").check().results
    cannot = "an exchange between GPUs cannot begin: "
    in_use = cannot + "the previous one on this lane has not ended" if np > 1 else ""
    refusals = [cannot + "a part has 2 GiB or more", in_use]
    assert results == [{"rank": rank, "takes": True, "refusals": refusals} for rank in range(np)]


@pytest.mark.parametrize("says_cuda", ["0", full(None)])
def test_an_mpi_that_is_not_cuda_aware_gets_no_gpu_memory(run: Run, says_cuda: str | None) -> None:
    results = run("exchange", np=2, says_cuda=says_cuda).check().results
    assert results == [{"rank": 0, "takes": False}, {"rank": 1, "takes": False}]


@pytest.mark.parametrize("np, ranks_per_node", [(2, 0), full(3, 0), full(4, 2)])
def test_sums_on_gpus_travel_over_cuda_aware_mpi(run: Run, np: int, ranks_per_node: int) -> None:
    how = {"np": np, "ranks_per_node": ranks_per_node}
    results = run("gpu", **how, says_cuda="1").check().results
    assert [one["rank"] for one in results] == list(range(np))
    assert results[0]["said"] == "by CUDA-aware MPI on all ranks"


def test_sums_on_gpus_are_staged_if_mpi_is_not_cuda_aware(run: Run) -> None:
    results = run("gpu", np=2).check().results
    assert results[0]["said"] == (
        "staged through the host, because the MPI of rank 0 does not report that it is CUDA-aware"
    )
