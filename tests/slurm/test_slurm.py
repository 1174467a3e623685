"""Slurm on this machine: srun with each kind of MPI and without, the sbatch template, salloc."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mpis
from launch import LaunchResult

pytestmark = pytest.mark.full
ROOT = Path(__file__).resolve().parents[2]
FIT = ROOT / "tests" / "packaging" / "mpi_fit.py"
Launch = Callable[..., LaunchResult]
_weights: set[str] = set()


@pytest.fixture(name="slurm", scope="module", autouse=True)
def slurm_fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cluster of one node, which its commands find through SLURM_CONF."""
    missing = [name for name in ("slurmctld", "slurmd", "munged") if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(
            f"needs root and {', '.join(missing) or 'nothing else'}: apt-get install "
            "slurm-wlm munge libpmix-dev"
        )
    place = tmp_path_factory.mktemp("slurm")
    script = str(Path(__file__).parent / "slurm.sh")
    environ = {**os.environ, "SLURM_PLACE": str(place)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(place / "slurm.conf"))
        with (place / "log.txt").open("w") as log:  # otherwise its daemons would keep a pipe open
            subprocess.run(["bash", script, "up"], env=environ, check=True, stdout=log, stderr=log)
        yield
        subprocess.run(["bash", script, "down"], env=environ, check=True, timeout=60)


def environment(name: str | None) -> dict[str, str | None]:
    return mpis.fetch(name).environment() if name else {"LD_LIBRARY_PATH": None}


@pytest.mark.parametrize(
    ("kind", "mpi"),
    [
        ("pmix", None),  # Open MPI in Python's environment
        ("pmix", "Open MPI 4.1.8"),
        ("pmi2", "MPICH 5.0.2"),
        ("pmi2", "MPICH 4.3.2"),
    ],
)
def test_srun_starts_ranks_with_each_mpi(launch: Launch, kind: str, mpi: str | None) -> None:
    words = ["srun", f"--mpi={kind}", "-n", "2"]
    run = launch(FIT, 2, launcher=words, env=environment(mpi), timeout=240).check()
    assert [(one["rank"], one["size"], one["slurm"]) for one in run.results] == [
        (0, 2, kind),
        (1, 2, kind),
    ]
    _weights.update(one["weights"] for one in run.results)
    assert len(_weights) == 1
    assert f"MPI ({mpi or 'Open MPI'}".rsplit(" ", 1)[0] in run.stderr[0]


def test_srun_without_mpi_starts_independent_tasks_and_says_so(launch: Launch) -> None:
    """They are neither averaged nor refused, and one line names the option."""
    run = launch(FIT, 2, launcher=["srun", "-n", "2"], timeout=240).check()
    assert [one["size"] for one in run.results] == [1, 1]
    said = (
        "started 2 tasks that know nothing of each other; to train together, start them with srun"
    )
    assert run.stderr[0].count(said) == 1 and "--mpi=pmix" in run.stderr[0]
    assert said not in run.stderr[1]


def test_srun_with_the_option_of_another_mpi_is_an_error(launch: Launch) -> None:
    words = ["srun", "--mpi=pmi2", "-n", "2"]
    code = [sys.executable, "-c", "import tensorflow"]
    # Debian's may be installed and would work.
    env = environment(None) | {"TF_MPI_LIBRARY": "mpich"}
    run = launch(code, 2, launcher=words, env=env, timeout=120)
    assert run.returncode != 0
    assert "srun --mpi=pmi2 started 2 ranks, but no libmpi.so.12" in run.stderr[0]
    assert "not of the launcher's MPI: " in run.stderr[0]
    assert "srun --mpi=pmix" in run.stderr[0]


def test_the_sbatch_template_trains(tmp_path: Path) -> None:
    words = ["sbatch", "--wait", str(ROOT / "examples" / "cluster" / "slurm.sbatch"), str(FIT)]
    environ = {**os.environ, "VENV": sys.prefix, "PYTHONPATH": str(ROOT / "tests" / "tf")}
    subprocess.run(words, cwd=tmp_path, env=environ, check=True, timeout=300)
    (log,) = tmp_path.glob("train-*.log")
    text = log.read_text()
    assert text.count('RESULT {"size": 2') == 2, text
    assert "averaging gradients over 2 ranks" in text


def test_each_node_unpacks_its_own_environment_with_packed(tmp_path: Path) -> None:
    """The template with PACKED imports nothing from the original environment."""
    packed = tmp_path / "venv.tar"
    subprocess.run(["tar", "-C", sys.prefix, "-cf", str(packed), "."], check=True, timeout=300)
    script = tmp_path / "where.py"
    script.write_text(
        "import tensorflow as tf\n"
        "files = {line.split()[-1] for line in open('/proc/self/maps') if '/lib' in line}\n"
        f"print('SIZE', tf.mpi.size(), 'FROM', any({sys.prefix!r} in name for name in files))\n"
        "print('FILE', tf.__file__, [name for name in files if 'libmpi.so' in name])\n"
    )
    words = ["sbatch", "--wait", str(ROOT / "examples" / "cluster" / "slurm.sbatch"), str(script)]
    environ = {**os.environ, "PACKED": str(packed)}
    subprocess.run(words, cwd=tmp_path, env=environ, check=True, timeout=300)
    (log,) = tmp_path.glob("train-*.log")
    text = log.read_text()
    assert text.count("SIZE 2 FROM False") == 2, text
    assert text.count("FILE /tmp/venv-") == 2 and text.count("['/tmp/venv-") == 2, text
    assert not list(Path("/tmp").glob("venv-*")), text


def test_salloc_runs_ranks(tmp_path: Path) -> None:
    code = "import tensorflow as tf; print('size', tf.mpi.size())"
    words = ["salloc", "-n", "2", "srun", "--mpi=pmix", sys.executable, "-c", code]
    run = subprocess.run(words, capture_output=True, text=True, timeout=240, check=True)
    assert run.stdout.count("size 2") == 2, run.stdout + run.stderr


def test_ranks_end_with_srun(tmp_path: Path) -> None:
    """Slurm's daemon, which started them, keeps them if both processes of srun are killed."""
    code = (
        "import os, sys, time, tensorflow as tf\n"
        "open(os.path.join(sys.argv[1], f'{tf.mpi.rank()}.pid'), 'w').write(str(os.getpid()))\n"
        "time.sleep(300)\n"
    )
    words = ["srun", "--mpi=pmix", "-J", "orphans", "-n", "2", sys.executable, "-c", code]
    words.append(str(tmp_path))
    with (tmp_path / "launcher").open("w") as log:
        srun = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
    try:
        files = [tmp_path / f"{rank}.pid" for rank in range(2)]
        _wait_until(lambda: all(file.exists() and file.read_text() for file in files), 120)
        os.killpg(srun.pid, signal.SIGKILL)
        srun.wait()
        ranks = [Path("/proc", file.read_text()) for file in files]
        _wait_until(lambda: not any(rank.exists() for rank in ranks), 5)
        line = f"rank 0/2: srun (process {srun.pid}), which started the ranks, was killed"
        assert (tmp_path / "launcher").read_text().count(line) == 1
    finally:
        subprocess.run(["scancel", "--name=orphans"], check=True, timeout=60)


def _wait_until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
