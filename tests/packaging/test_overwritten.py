"""A wheel whose files another distribution overwrote: ranks report it and the command to fix it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from packaging_venv import Venv
from slim import Slim

pytestmark = pytest.mark.full


@pytest.fixture(name="slim", scope="module")
def slim_fixture(tmp_path_factory: pytest.TempPathFactory) -> Slim:
    return Slim.of_checkout(tmp_path_factory.mktemp("wheels with a space"))


@pytest.fixture(name="venv")
def venv_fixture(tmp_path: Path) -> Venv:
    return Venv.make(tmp_path / "venv")


def test_an_intact_wheel_prints_nothing_and_reads_nothing_without_a_launcher(
    slim: Slim, venv: Venv
) -> None:
    venv.pip("install", "--no-deps", slim.ours())
    assert venv.fault() is None and venv.owners() == ("tensorflow 2.21.0+mpi.1.cpu", [])
    # Ranks get as far as the first library, which a slim wheel lacks.
    assert "would train alone" not in venv.import_as_rank()
    # Without a launcher no file is read.
    site = venv.site / "tensorflow" / "mpi"
    (site / "at_start.py").write_text("raise SystemExit('read')")
    assert venv.run("-c", "print(1)").stdout == "1\n"
    assert "read" in venv.run("-c", "print(1)", env={"OMPI_COMM_WORLD_SIZE": "2"}).stderr


@pytest.mark.parametrize("order", ["overwritten", "removed"])
def test_ranks_name_the_other_distribution_and_the_command_fixes_it(
    slim: Slim, venv: Venv, order: str
) -> None:
    ours, stock = slim.ours(), slim.stock()
    if order == "overwritten":
        venv.pip("install", "--no-deps", ours)
        venv.pip("install", "--no-deps", stock)
        by = "were overwritten by tensorflow-cpu 2.21.0,"
    else:
        venv.pip("install", "--no-deps", stock)
        venv.pip("install", "--no-deps", ours)
        assert venv.fault() is None and venv.owners()[1] == ["tensorflow-cpu 2.21.0"]
        venv.pip("uninstall", "-y", "tensorflow-cpu")
        by = "were removed by a distribution that is no longer installed,"
    said = venv.import_as_rank()
    assert f"files of tensorflow 2.21.0+mpi.1.cpu {by} so each of these 2 ranks would" in said
    assert "would train" not in venv.import_as_rank(TF_MPI_ENABLE="0")
    assert "would train" not in venv.run("-c", "import tensorflow").stderr  # one process
    other = venv.run("-c", "import json; print(2)", env={"OMPI_COMM_WORLD_SIZE": "2"})
    assert other.stdout == "2\n" and not other.stderr  # a script without TensorFlow

    command = said.partition("To fix this: ")[2].partition("  or set TF_MPI_ENABLE=0")[0]
    subprocess.run(["sh", "-ec", command], check=True, timeout=300, capture_output=True)
    assert venv.fault() is None
    assert venv.owners() == ("tensorflow 2.21.0+mpi.1.cpu", [])
    assert "would train" not in venv.import_as_rank()


def test_the_command_asks_for_a_missing_wheel_by_its_version(slim: Slim, venv: Venv) -> None:
    ours = slim.ours()
    venv.pip("install", "--no-deps", ours)
    venv.pip("install", "--no-deps", slim.stock("tf_nightly"))
    ours.rename(ours.with_suffix(".gone"))
    try:
        said = venv.import_as_rank()
    finally:
        ours.with_suffix(".gone").rename(ours)
    assert "by tf-nightly 2.21.0," in said and "uninstall -y tf-nightly && " in said
    assert '--no-deps "tensorflow==2.21.0+mpi.1.cpu"' in said


def test_pip_uninstall_leaves_nothing_behind(slim: Slim, venv: Venv) -> None:
    venv.pip("install", "--no-deps", slim.ours())
    venv.pip("uninstall", "-y", "tensorflow")
    assert not list(venv.folder.rglob("tensorflow*"))


def test_this_environment_is_intact() -> None:
    code = "import runpy; print(runpy.run_path(%r)['fault'](%r))"
    root = Path(__file__).parents[2]
    site = next(Path(path) for path in sys.path if path.endswith("site-packages"))
    file = str(root / "tensorflow_patches" / "python" / "installation.py")
    words = [sys.executable, "-c", code % (file, str(site))]
    run = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout == "None\n"
