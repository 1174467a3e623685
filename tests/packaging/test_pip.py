"""How pip and uv handle the wheel: the table of decision 054.

Uses wheels without TensorFlow's libraries (slim.py). Packages that depend on tensorflow, and its
dependencies, come from pip's configured index; nothing large is installed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging_venv import Venv
from slim import Slim

pytestmark = pytest.mark.full
OURS = "tensorflow 2.21.0+mpi.1.cpu"
ASKING = ["tf_keras", "keras-hub", "tensorflow-text", "tensorflow-hub"]


@pytest.fixture(name="slim", scope="module")
def slim_fixture(tmp_path_factory: pytest.TempPathFactory) -> Slim:
    return Slim.of_checkout(tmp_path_factory.mktemp("wheels"))


@pytest.fixture(name="venv")
def venv_fixture(tmp_path: Path) -> Venv:
    return Venv.make(tmp_path / "venv")


@pytest.fixture(name="full_venv")
def full_venv_fixture(tmp_path: Path) -> Venv:
    """An environment with all of TensorFlow's dependencies."""
    venv = Venv.make(tmp_path / "venv")
    here = next(Path(path) for path in sys.path if path.endswith("site-packages"))
    for path in here.iterdir():
        if not path.name.startswith(("tensorflow", "tf_", "pip")) and path.suffix != ".pth":
            (venv.site / path.name).symlink_to(path)
    return venv


def planned(venv: Venv, *words: str | Path) -> dict[str, str]:
    """What pip would install, as name -> version."""
    report = venv.folder / "report.json"
    venv.pip("install", "--dry-run", "--report", report, *words)
    items = json.loads(report.read_text())["install"]
    return {item["metadata"]["name"]: item["metadata"]["version"] for item in items}


def whole(venv: Venv) -> bool:
    return venv.fault() is None and venv.owners() == (OURS, [])


def test_a_fresh_install_is_complete(slim: Slim, full_venv: Venv) -> None:
    full_venv.pip("install", "--no-index", slim.ours())
    assert whole(full_venv)
    assert "No broken requirements" in full_venv.pip("check")


def test_stock_tensorflow_is_replaced(slim: Slim, venv: Venv) -> None:
    venv.pip("install", "--no-deps", slim.stock("tensorflow"))
    said = venv.pip("install", "--no-deps", slim.ours())
    assert "Uninstalling tensorflow-2.21.0:" in said and whole(venv)


def test_stock_tensorflow_cpu_is_not_replaced_but_named(slim: Slim, venv: Venv) -> None:
    """pip does not know that the two conflict: ours works, and the doctor names the other."""
    venv.pip("install", "--no-deps", slim.stock())
    venv.pip("install", "--no-deps", slim.ours())
    assert venv.fault() is None and venv.owners() == (OURS, ["tensorflow-cpu 2.21.0"])


@pytest.mark.parametrize("package", ASKING)
def test_packages_that_depend_on_tensorflow_are_satisfied(
    slim: Slim, full_venv: Venv, package: str
) -> None:
    """Installed before ours, they bring stock TensorFlow, which ours replaces; after, nothing."""
    before = planned(full_venv, package)
    assert before["tensorflow"].partition("+")[0] >= "2.21.0"
    full_venv.pip("install", "--no-index", slim.ours())
    after = planned(full_venv, f"{package}", "-c", _constraints(full_venv))
    assert package.replace("_", "-") in {name.replace("_", "-") for name in after}
    assert "tensorflow" not in after and "tensorflow-cpu" not in after


def _constraints(venv: Venv) -> Path:
    """The constraints of INSTALL.txt."""
    path = venv.folder / "constraints.txt"
    path.write_text(f"{OURS.replace(' ', '==')}\n")
    return path


def test_packages_installed_before_stay_satisfied(slim: Slim, full_venv: Venv) -> None:
    full_venv.pip("install", "--no-deps", slim.stock("tensorflow"))
    full_venv.pip("install", "--no-deps", "tf_keras==2.21.0")
    full_venv.pip("install", "--no-index", slim.ours())
    assert whole(full_venv) and "No broken requirements" in full_venv.pip("check")


def test_a_requirements_file_is_satisfied(slim: Slim, full_venv: Venv) -> None:
    full_venv.pip("install", "--no-index", slim.ours())
    for wanted in ("tensorflow==2.21.0", "tensorflow~=2.21.0", "tensorflow<2.22,>=2.21"):
        path = full_venv.folder / "requirements.txt"
        path.write_text(f"{wanted}\n")
        assert planned(full_venv, "-r", path) == {}
    assert planned(full_venv, "tensorflow-cpu==2.21.0") == {"tensorflow_cpu": "2.21.0"}


def test_upgrades_replace_the_wheel_unless_constrained(slim: Slim, full_venv: Venv) -> None:
    """A newer stock TensorFlow replaces ours without a constraint; our next release is newer."""
    full_venv.pip("install", "--no-index", slim.ours())
    links = ["--no-index", "--find-links", slim.out, "--upgrade", "tensorflow"]
    slim.ours(release="mpi.2")
    assert planned(full_venv, *links) == {"tensorflow": "2.21.0+mpi.2.cpu"}
    newer = slim.stock("tensorflow", "2.22.0")
    try:
        assert planned(full_venv, *links) == {"tensorflow": "2.22.0"}
        assert planned(full_venv, *links, "-c", _constraints(full_venv)) == {}
    finally:
        newer.unlink()
        next(slim.out.glob("*mpi.2*")).unlink()


def test_pip_prefers_the_gpu_wheel_in_a_folder_with_both(slim: Slim, full_venv: Venv) -> None:
    """Offline and unspecified: it takes the wheel that runs everywhere, like stock TensorFlow."""
    slim.ours()
    gpu = slim.gpu()
    links = ["--no-index", "--find-links", slim.out]
    try:
        cuda = {"tensorflow": "2.21.0+mpi.1.cuda"}
        assert planned(full_venv, *links, "tensorflow==2.21.0") == cuda
        exact = planned(full_venv, *links, "tensorflow==2.21.0+mpi.1.cpu")
        assert exact == {"tensorflow": "2.21.0+mpi.1.cpu"}
    finally:
        gpu.unlink()


def test_uninstall_removes_the_wheel(slim: Slim, venv: Venv) -> None:
    venv.pip("install", "--no-deps", slim.ours())
    venv.pip("uninstall", "-y", "tensorflow")
    assert not list(venv.folder.rglob("tensorflow*"))


@pytest.fixture(name="uv")
def uv_fixture() -> str:
    path = Path(sys.executable).parent / "uv"
    found = str(path) if path.exists() else shutil.which("uv")
    if found is None:
        pytest.skip("no uv: pip install uv")
    return found


def test_uv_behaves_like_pip(slim: Slim, full_venv: Venv, uv: str) -> None:
    """Also if the wheel was overwritten; the command to fix it uses uv if pip is missing."""

    def run(*words: str | Path) -> str:
        command = [uv, "pip", *map(str, words), "--python", str(full_venv.python)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    run("install", "--no-deps", slim.stock("tensorflow"))
    run("install", "--no-deps", slim.ours())
    assert whole(full_venv)
    same = run("install", "--dry-run", "--no-deps", "--no-index", "tensorflow==2.21.0")
    assert "no changes" in same or "Checked" in same or "Audited" in same
    run("install", "--no-deps", slim.stock())
    assert "overwritten by tensorflow-cpu 2.21.0" in str(full_venv.fault())
    for path in full_venv.site.glob("pip*"):
        path.unlink()
    said = full_venv.import_as_rank()
    assert "uv pip uninstall --python" in said
    command = said.partition("To fix this: ")[2].partition("  or set TF_MPI_ENABLE=0")[0]
    command = command.replace("uv pip", f"{uv} pip")
    subprocess.run(["sh", "-ec", command], check=True, timeout=300, capture_output=True)
    assert whole(full_venv)
