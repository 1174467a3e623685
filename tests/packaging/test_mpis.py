"""One wheel on MPIs of all three ABIs: the same training gives the same weights on each."""

from __future__ import annotations

import functools
import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import mpis
from launch import LaunchResult

pytestmark = pytest.mark.full
ROOT = Path(__file__).resolve().parents[2]
EXCHANGE = Path(__file__).parent / "mpi_exchange.py"
FIT = Path(__file__).parent / "mpi_fit.py"
IMPORT = [sys.executable, "-c", "import tensorflow"]
Launch = Callable[..., LaunchResult]
_weights: dict[str, str] = {}  # by MPI


@functools.cache
def fetch(name: str) -> mpis.Mpi:
    return mpis.fetch(name)


@pytest.mark.parametrize("name", mpis.NAMES)
def test_every_mpi_trains_the_same_weights(launch: Launch, name: str) -> None:
    try:
        mpi = fetch(name)
    except mpis.NotInstalled as package:
        pytest.skip(f"needs apt-get install --no-install-recommends {package}")
    # If a library has both ABIs, its launcher does not show which one is wanted.
    chosen = {"TF_MPI_LIBRARY": "abi"} if mpi.abi == "abi" else {}
    run = launch(FIT, 2, launcher=mpi.launcher(2), env=mpi.environment() | chosen, timeout=240)
    first, second = run.check().results
    assert (first["size"], first["rank"], second["rank"]) == (2, 0, 1)
    assert first["weights"] == second["weights"]
    # The launcher's own library is used, although Python's environment has another one.
    assert first["libraries"] and all(
        path.startswith(f"{mpi.folder}/") for path in first["libraries"]
    ), first["libraries"]
    family, *words = name.replace(",", "").split()
    (version,) = [word for word in words if "." in word] or [""]
    named = re.search(r"on 1 node, MPI \((.*)\), tensorflow ", run.stderr[0])
    assert named and named[1].startswith(family) and version in named[1], run.stderr[0]
    _weights[name] = first["weights"]
    assert len(set(_weights.values())) == 1, _weights


@pytest.fixture(name="says_cuda", scope="session")
def says_cuda_fixture() -> Path:
    """A library for LD_PRELOAD that makes an MPI claim to be CUDA-aware."""
    name = "libsays_cuda.so"
    subprocess.run(["bazel", "--batch", "build", f"//tests/mpi:{name}"], cwd=ROOT, check=True)
    return ROOT / ".cache" / "bazel-bin" / "tests" / "mpi" / name


@pytest.mark.parametrize("says", ["1", None])
@pytest.mark.parametrize("name", mpis.NAMES)
def test_gpu_memory_travels_over_every_cuda_aware_mpi(
    launch: Launch, says_cuda: Path, name: str, says: str | None
) -> None:
    try:
        mpi = fetch(name)
    except mpis.NotInstalled as package:
        pytest.skip(f"needs apt-get install --no-install-recommends {package}")
    env = mpi.environment()
    if says is not None:
        env |= {"LD_PRELOAD": str(says_cuda), "SAYS_CUDA": says}
    spec = importlib.util.find_spec("tensorflow")
    assert spec is not None and spec.submodule_search_locations
    libraries = Path(spec.submodule_search_locations[0]) / "mpi" / "lib"
    args = [libraries / f"libtfmpi_transport_{mpi.abi}.so"]
    run = launch(EXCHANGE, 3, args=args, launcher=mpi.launcher(3), env=env, timeout=120)
    takes = 0 if says is None else 1
    expected = {"takes": takes, "right": True, "exchanges": 12}
    assert run.check().results == [{"rank": rank, **expected} for rank in range(3)]


@pytest.mark.parametrize(
    ("launcher", "library", "said"),
    [
        ("MPICH 5.0.2", "Open MPI 5.0.11", "MPICH's or Intel MPI's mpiexec started 2 ranks"),
        ("Open MPI 4.1.8", "MPICH 4.3.2", "Open MPI's mpirun started 2 ranks"),
    ],
)
def test_a_library_that_does_not_match_the_launcher_is_refused(
    launch: Launch, launcher: str, library: str, said: str
) -> None:
    """TF_MPI_LIBRARY contradicts the launcher: the error names both."""
    one, other = fetch(launcher), fetch(library)
    env = one.environment() | {
        "TF_MPI_LIBRARY": other.abi,
        "LD_LIBRARY_PATH": str(other.environment()["LD_LIBRARY_PATH"]),
    }
    run = launch(IMPORT, 2, launcher=one.launcher(2), env=env, timeout=120)
    assert run.returncode != 0
    for text in run.stderr:
        assert said in text and "does not belong to the launcher" in text, text
        named = rf"\(by {one.folder}/\S+\), but {other.folder}/\S+, of "
        assert re.search(named, text), text


def test_the_launchers_own_library_is_found_without_a_module(launch: Launch) -> None:
    """LD_LIBRARY_PATH is not set, and Python's environment has another MPI."""
    mpi = fetch("MPICH 4.3.2")
    env = {"LD_LIBRARY_PATH": None}
    run = launch(IMPORT, 2, launcher=mpi.launcher(2), env=env, timeout=120).check()
    assert "MPI (MPICH 4.3.2)" in run.stderr[0]


@pytest.mark.parametrize("name", ["Open MPI 5.0.11", "MPICH 4.3.2"])
@pytest.mark.parametrize("order", ["before", "after"])
def test_mpi4py_works_beside_averaging(launch: Launch, name: str, order: str) -> None:
    """Alternates its sums with our steps; the first one starts MPI, and neither ends it too
    early."""
    mpi = fetch(name)
    words = [sys.executable, str(FIT.parent / "mpi4py_beside.py"), order]
    # This environment has two MPIs, between which mpi4py would choose in its own way.
    env = mpi.environment() | {"PYTHONPATH": str(FIT.parents[1] / "tf"), "MPI4PY_MPIABI": mpi.abi}
    run = launch(words, 2, launcher=mpi.launcher(2), env=env, timeout=240).check()
    for rank, found in enumerate(run.results):
        assert (found["ours"], found["theirs"]) == ([rank, 2], [rank, 2])
        assert found["sums"] == [3.0 * step for step in range(20)]
    assert run.results[0]["weights"] == run.results[1]["weights"]


def test_mpi4py_without_threads_is_an_error(launch: Launch) -> None:
    """MPI was started without the thread support that our communication thread needs."""
    words = [sys.executable, str(FIT.parent / "mpi4py_beside.py"), "before", "single"]
    mpi = fetch("Open MPI 5.0.11")
    env = mpi.environment() | {"PYTHONPATH": str(FIT.parents[1] / "tf")}
    run = launch(words, 2, launcher=mpi.launcher(2), env=env, timeout=120)
    assert run.returncode != 0
    assert any("calls MPI, too: set mpi4py.rc.thread_level" in text for text in run.stderr), (
        run.report()
    )


def test_an_mpi_started_by_the_script_is_used(launch: Launch) -> None:
    """As with mpi4py, the process already has MPI when it imports TensorFlow."""
    mpi = fetch("MPICH 5.0.2")
    code = (
        "import ctypes; mpi = ctypes.CDLL('libmpi_abi.so.1'); p = ctypes.c_int()\n"
        "mpi.MPI_Init_thread(None, None, 4096, ctypes.byref(p))\n"
        "import atexit; atexit.register(mpi.MPI_Finalize)  # as mpi4py does, before TensorFlow\n"
        "import tensorflow as tf; print('RESULT', '{\"size\": %d}' % tf.mpi.size())\n"
        "print(*{line.split()[-1] for line in open('/proc/self/maps') if 'libtfmpi_tr' in line})"
    )
    run = launch(
        [sys.executable, "-c", code],
        2,
        launcher=mpi.launcher(2),
        env=mpi.environment(),
        timeout=120,
    ).check()
    assert [one["size"] for one in run.results] == [2, 2]
    assert "transport_abi.so" in run.stdout[0] and "transport_mpich" not in run.stdout[0]
