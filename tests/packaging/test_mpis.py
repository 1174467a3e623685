"""One wheel on MPIs of all three ABIs: the same training, with the same weights, on each."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import mpis
from launch import LaunchResult

pytestmark = pytest.mark.full
FIT = Path(__file__).parent / "mpi_fit.py"
IMPORT = [sys.executable, "-c", "import tensorflow"]
Launch = Callable[..., LaunchResult]
_weights: dict[str, str] = {}  # by MPI


@functools.cache
def fetch(name: str) -> mpis.Mpi:
    return mpis.fetch(name)


@pytest.mark.parametrize("name", mpis.NAMES)
def test_the_same_weights_on_every_mpi(launch: Launch, name: str) -> None:
    mpi = fetch(name)
    # Where a library has both ABIs, its launcher cannot tell which is wanted.
    chosen = {"TF_MPI_LIBRARY": "abi"} if mpi.abi == "abi" else {}
    run = launch(FIT, 2, launcher=mpi.launcher(2), env=mpi.environment() | chosen, timeout=240)
    first, second = run.check().results
    assert (first["size"], first["rank"], second["rank"]) == (2, 0, 1)
    assert first["weights"] == second["weights"]
    assert f"MPI ({name.split(' 2021')[0].split(',')[0].split(' MPI')[0]}" in run.stderr[0]
    _weights[name] = first["weights"]
    assert len(set(_weights.values())) == 1, _weights


@pytest.mark.parametrize(
    ("launcher", "library", "said"),
    [
        ("MPICH 5.0.2", "Open MPI 5.0.11", "MPICH's or Intel MPI's mpiexec started 2 ranks"),
        ("Open MPI 4.1.8", "MPICH 4.3.2", "Open MPI's mpirun started 2 ranks"),
    ],
)
def test_a_launcher_and_a_library_that_do_not_belong_together(
    launch: Launch, launcher: str, library: str, said: str
) -> None:
    """Chosen by hand, against what the launcher is: the error has both names."""
    one, other = fetch(launcher), fetch(library)
    env = one.environment() | {
        "TF_MPI_LIBRARY": other.abi,
        "LD_LIBRARY_PATH": str(other.environment()["LD_LIBRARY_PATH"]),
    }
    run = launch(IMPORT, 2, launcher=one.launcher(2), env=env, timeout=120)
    assert run.returncode != 0
    for text in run.stderr:
        assert said in text and "does not belong to it" in text, text
        assert str(one.folder) in text and str(other.folder) in text


def test_the_launchers_own_library_is_found_without_a_module(launch: Launch) -> None:
    """Nothing on LD_LIBRARY_PATH, and another MPI in Python's environment."""
    mpi = fetch("MPICH 4.3.2")
    env = {"LD_LIBRARY_PATH": None}
    run = launch(IMPORT, 2, launcher=mpi.launcher(2), env=env, timeout=120).check()
    assert "MPI (MPICH 4.3.2)" in run.stderr[0]


def test_an_mpi_that_the_script_has_started_is_used(launch: Launch) -> None:
    """As mpi4py does: it is in the process when TensorFlow is imported."""
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
