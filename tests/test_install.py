"""install.sh with a small stand-in for the wheel, in temporary environments."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

INSTALL = Path(__file__).parent.parent / "install.sh"
CPU, GPU = "cpu", "cuda"
TAG = f"cp{sys.version_info[0]}{sys.version_info[1]}"


def program(path: Path, *lines: str) -> Path:
    """Writes a shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


@pytest.fixture(name="programs", scope="module", autouse=True)
def programs_fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Puts stubs first on PATH: mpirun for --system-mpi; failing apt-get, sudo and nvidia-smi."""
    directory = tmp_path_factory.mktemp("programs")
    for name, code in (("mpirun", 0), ("apt-get", 1), ("sudo", 1), ("nvidia-smi", 9)):
        program(directory / name, f"exit {code}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(directory), prepend=os.pathsep)
        patch.delenv("VIRTUAL_ENV", raising=False)
        yield


def install(*arguments: str | Path, script: Path = INSTALL) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )


def stand_in(
    directory: Path, source: str = "", tag: str = TAG, label: str = CPU, version: str = ""
) -> Path:
    """A wheel with the right name and version, and `source` as its whole `tensorflow`."""
    version = version or f"2.21.0+mpi.1.{label}"
    path = directory / f"tensorflow-{version}-{tag}-{tag}-linux_x86_64.whl"
    info = f"tensorflow-{version}.dist-info"
    files = {
        "tensorflow/__init__.py": source,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tensorflow\n"
        f"Version: {version}\nProvides-Extra: and-cuda\n"
        'Requires-Dist: cuda-stand-in; extra == "and-cuda"\n',
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\n"
        f"Tag: {tag}-{tag}-linux_x86_64\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(name, text)
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with only pip, which tests copy because installing pip takes seconds."""
    venv = tmp_path_factory.mktemp("made") / "environment"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True, timeout=120)
    return venv


@pytest.fixture(name="venv")
def venv_fixture(tmp_path: Path, made: Path) -> Path:
    """A copy of that environment. Scripts in it name the original, but no test runs them."""
    venv = tmp_path / "environment with a space"
    shutil.copytree(made, venv, symlinks=True)
    return venv


def imported(venv: Path) -> str:
    command = [str(venv / "bin" / "python"), "-c", "import tensorflow; print(tensorflow.MARK)"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip()


def test_installs_once_and_again_when_the_wheel_changes(tmp_path, venv):
    options = ["--venv", venv, "--system-mpi", "--wheel"]
    folder = tmp_path / "100% of #1"  # characters that a URL escapes
    folder.mkdir()
    wheel = stand_in(folder, "MARK = 1")
    first = install(*options, wheel)
    assert first.returncode == 0, first.stdout + first.stderr
    assert imported(venv) == "1"

    start = time.monotonic()
    second = install(*options, wheel)
    assert second.returncode == 0 and "Already installed" in second.stdout
    assert time.monotonic() - start < 10

    changed = install(*options, stand_in(folder, "MARK = 2"))  # the same version
    assert changed.returncode == 0 and imported(venv) == "2"


def test_a_wheel_that_cannot_be_imported_is_an_error_that_gives_the_reason(tmp_path, venv):
    broken = stand_in(tmp_path, "raise ImportError('no libfoo.so')")
    run = install("--venv", venv, "--system-mpi", "--wheel", broken)
    assert run.returncode != 0
    assert "no libfoo.so" in run.stderr
    log = INSTALL.parent / ".cache" / "logs" / "import.log"
    command = f"{venv}/bin/python -c import tensorflow"
    assert f"failed: {command} (full output: {log})\n  next: see {log}" in run.stderr


def test_a_wheel_for_another_python_is_refused(tmp_path, venv):
    run = install("--venv", venv, "--wheel", stand_in(tmp_path, tag="cp39"))
    assert run.returncode != 0
    assert (
        f"is not for {TAG}, the Python of {venv}\n  next: pass a wheel for {TAG}, or" in run.stderr
    )


def install_distribution(venv: Path, name: str, version: str) -> Path:
    """Installs a distribution that owns the folder tensorflow; returns site-packages."""
    site = next((venv / "lib").glob("python3*/site-packages"))
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (site / "tensorflow").mkdir()
    (site / "tensorflow" / "__init__.py").write_text("MARK = 'theirs'\n")
    (info / "INSTALLER").write_text("pip\n")
    record = ["tensorflow/__init__.py"]
    record += [f"{info.name}/{file}" for file in ("METADATA", "RECORD", "INSTALLER")]
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in record))
    return site


@pytest.mark.parametrize("other", ["tensorflow-cpu", "tf-nightly"])
def test_an_environment_with_another_distribution_is_left_alone(tmp_path, venv, other):
    site = install_distribution(venv, other, "2.21.0")
    run = install("--venv", venv, "--system-mpi", "--wheel", stand_in(tmp_path))
    assert run.returncode != 0 and f"'{other}', and this wheel would overwrite" in run.stderr
    assert "theirs" in (site / "tensorflow" / "__init__.py").read_text()


@pytest.mark.parametrize(
    ("name", "version"), [("tensorflow", "2.21.0"), ("tensorflow-cpu", "2.21.0+mpi.1")]
)
def test_stock_tensorflow_and_our_wheel_under_its_old_name_are_replaced(
    tmp_path, venv, name, version
):
    site = install_distribution(venv, name, version)
    run = install("--venv", venv, "--system-mpi", "--wheel", stand_in(tmp_path, "MARK = 5"))
    assert run.returncode == 0 and imported(venv) == "5", run.stdout + run.stderr
    assert [path.name for path in site.glob("tensorflow*.dist-info")] == [
        "tensorflow-2.21.0+mpi.1.cpu.dist-info"
    ]


def test_the_gpu_wheel_installs_without_cuda_libraries_where_no_gpu_is(tmp_path, venv):
    """It says so, and a second run with --gpu finds the wheel installed."""
    options = ["--venv", venv, "--system-mpi", "--wheel"]
    wheel = stand_in(tmp_path, "MARK = 3", label=GPU)
    first = install(*options, wheel)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "Found no GPU: not installing CUDA" in first.stdout and imported(venv) == "3"
    assert "Already installed" in install(*options, wheel, "--gpu").stdout
    asked = install(*options, wheel, "--with-cuda")
    assert asked.returncode != 0 and "cuda-stand-in" in asked.stderr  # PyPI has no such package


def test_a_gpu_brings_cuda_libraries_or_a_line_about_the_cpu_wheel(tmp_path, venv, monkeypatch):
    program(tmp_path / "nvidia-smi", "echo 'GPU 0: A stand-in (UUID: GPU-0)'")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    run = install("--venv", venv, "--system-mpi", "--wheel", stand_in(tmp_path, label=GPU))
    assert run.returncode != 0 and "cuda-stand-in" in run.stderr  # and-cuda was asked for
    options = ["--venv", venv, "--system-mpi", "--wheel", stand_in(tmp_path, "MARK = 4", label=GPU)]
    run = install(*options, "--without-cuda")
    assert run.returncode == 0 and imported(venv) == "4"
    run = install(
        *options[:-1], stand_in(tmp_path, tag="cp39")
    )  # refused, but later than this line
    assert "Found a GPU, but using the CPU wheel" in run.stdout


def test_a_flavour_option_that_contradicts_the_wheel_is_refused(tmp_path, venv):
    for option, label in (("--gpu", CPU), ("--cpu", GPU)):
        run = install("--venv", venv, option, "--wheel", stand_in(tmp_path, label=label))
        assert run.returncode != 0 and f"does not match {option}" in run.stderr


def test_a_tensorflow_version_and_a_wheel_together_are_refused(tmp_path):
    run = install("--tensorflow", "2.18.1", "--wheel", stand_in(tmp_path))
    assert run.returncode != 0 and "--tensorflow chooses what to build" in run.stderr


def test_an_older_tensorflow_with_a_newer_python_is_refused(tmp_path):
    python = program(tmp_path / "python3.13", "echo 3.13")
    run = install("--tensorflow", "2.18.1", "--python", python, "--venv", tmp_path / "new")
    assert (
        run.returncode != 0 and "is Python 3.13, not 3.10 to 3.12 (TensorFlow 2.18.1)" in run.stderr
    )


def test_pip_keeps_the_wheel_and_rank_0_reports_that_it_was_replaced(tmp_path, venv):
    assert install("--venv", venv, "--system-mpi", "--wheel", stand_in(tmp_path)).returncode == 0
    stand_in(tmp_path, "MARK = 'stock'", version="2.19.0")
    python = venv / "bin" / "python"
    older = [python, "-m", "pip", "install", "--no-index", "--find-links", tmp_path]
    older += ["tensorflow<2.20"]

    def run(command: list[str | Path], **variables: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, **variables}
        return subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=60, check=False
        )

    refused = run(older)
    assert refused.returncode != 0 and "tensorflow==2.21.0+mpi.1.cpu" in refused.stdout
    assert run(older, PIP_CONFIG_FILE=os.devnull).returncode == 0 and imported(venv) == "stock"

    start = [python, "-X", "dev", "-W", "error", "-c", "pass"]
    ranks = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}
    said = run(start, **ranks).stderr
    assert said.count("each of the 2 ranks trains alone") == said.count("\n") == 1
    for quiet in ({}, {**ranks, "OMPI_COMM_WORLD_RANK": "1"}, {**ranks, "TF_MPI_ENABLE": "0"}):
        assert run(start, **quiet).stderr == ""


def test_the_users_own_constraint_of_pip_is_kept(tmp_path, venv):
    settings = venv / "pip.conf"
    own = tmp_path / "own.txt"
    own.touch()
    settings.write_text(f"[install]\nconstraint = {own}\n")
    run = install("--venv", venv, "--system-mpi", "--wheel", stand_in(tmp_path))
    assert run.returncode == 0 and "pip already uses constraints in" in run.stdout
    assert f"constraint = {own}\n" in settings.read_text()


def test_uninstall_without_our_wheel_does_nothing_and_without_environment_fails(tmp_path, venv):
    run = install("--venv", venv, "--uninstall")
    assert run.returncode == 0 and "Nothing to do" in run.stdout
    run = install("--venv", tmp_path / "nowhere", "--uninstall")
    assert run.returncode != 0 and "no environment" in run.stderr


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--frob"], "unknown option --frob\n  next: ./install.sh --help"),
        (["--venv"], "--venv needs a value\n  next: ./install.sh --help"),
        (["--wheel", "/nowhere.whl"], "no such wheel"),
        (["--cpu", "--with-cuda"], "--with-cuda needs the GPU wheel"),
        (["--python", "python9.9", "--venv", "/nowhere"], "no such Python"),
        (["--venv", "/usr"], "is not a virtual environment"),
        (["--tensorflow", "2.15.0"], "cannot build for TensorFlow 2.15.0, only for 2.16.2 2.17.1 "),
        (
            ["--tensorflow", "2.18.1", "--wheel", "WHEEL"],
            "--tensorflow chooses what to build, and --wheel builds nothing\n  next: omit",
        ),
        (["--wheel", "WHEEL", "--cpu"], "does not match --cpu\n  next: omit --cpu"),
        (["--uninstall", "--venv", "/nowhere"], "no environment at /nowhere\n  next: pass --venv"),
        (["--venv", "OLD"], "is Python 3.9, not 3.10 to 3.13\n  next: pass another --venv"),
        (["--venv", "BROKEN"], "is Python unknown, not 3.10 to 3.13\n  next: pass another --venv"),
        (
            ["--venv", "NEW", "--python", "PYTHON"],
            "has Python 3.12, not the version of PYTHON\n  next: pass",
        ),
        (["--tensorflow", "2.18.1", "--gpu"], "--gpu works with TensorFlow 2.21.0 only"),
    ],
)
def test_a_bad_command_line_is_refused_with_the_reason(tmp_path, arguments, said):
    made = {"WHEEL": str(stand_in(tmp_path, label=GPU)), "PYTHON": str(tmp_path / "python")}
    for name, prints in (
        ("OLD/bin/python", "echo 3.9"),
        ("NEW/bin/python", "echo 3.12"),
        ("BROKEN/bin/python", "exit 1"),
        ("python", "echo 3.11"),
    ):
        program(tmp_path / name, prints)
    made |= {name: str(tmp_path / name) for name in ("OLD", "NEW", "BROKEN")}
    run = install(*(made.get(word, word) for word in arguments))
    assert run.returncode != 0 and said.replace("PYTHON", made["PYTHON"]) in run.stderr


def test_without_a_supported_python_on_path_nothing_is_installed(tmp_path, monkeypatch):
    for name in ("python3", *(f"python3.{minor}" for minor in range(10, 14))):
        program(tmp_path / "bin" / name, "echo 3.9")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    run = install("--venv", tmp_path / "new")
    assert run.returncode != 0
    assert "no Python 3.10 to 3.13 on PATH\n  next: apt-get install python3, or" in run.stderr


@pytest.fixture(name="tree")
def tree_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout without wheels on a machine with a compiler; install.sh can only build there."""
    root, tree = INSTALL.parent, tmp_path / "tree"
    tree.mkdir()
    for name in ("install.sh", "third_party"):
        (tree / name).symlink_to(root / name)
    (tree / "install.sh").unlink()
    shutil.copy(root / "install.sh", tree)
    shutil.copytree(root / "build" / "install", tree / "build" / "install")
    (tree / "build" / "requirements.txt").write_text("")
    program(tree / ".cache" / "builder" / "bin" / "python", '[ "$1" = -c ] || exec ./builder')
    stamp = (
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  -"  # of an empty text
    )
    (tree / ".cache" / "builder" / "stamp").write_text(stamp)
    for name, line in (("g++", ""), ("patch", ""), ("bazel", ""), ("dpkg-query", "exit 1")):
        program(tmp_path / "bin" / name, line)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    program(tree / "venv" / "bin" / "python", 'case "$*" in *version_info*) echo 3.12 ;; esac')
    monkeypatch.delenv("CC", raising=False)
    return tree


@pytest.mark.parametrize("prints", ["exit 1", "echo nothing"])
def test_a_build_without_a_wheel_is_an_error_that_names_the_log(tree, prints):
    program(tree / "builder", prints)
    options = ["--venv", tree / "venv", "--system-mpi", "--cpu"]
    run = install(*options, script=tree / "install.sh")
    log = tree / ".cache" / "logs" / "wheel.log"
    assert run.returncode != 0
    assert f"no wheel was built (full output: {log})\n  next: see above" in run.stderr


def test_missing_packages_without_a_way_to_install_them_are_named(tree, tmp_path):
    (tmp_path / "bin" / "g++").unlink()
    script = f"""
        command() {{ [[ $2 != g++ && $2 != apt-get ]]; }}
        . {tree}/install.sh --venv {tree}/venv --system-mpi --cpu
    """
    run = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert run.returncode != 0 and "g++: the C++ compiler" in run.stdout
    assert "installing them needs apt-get, and root or sudo\n  next: install the" in run.stderr
    assert "apt-get install --no-install-recommends g++\n" in run.stderr


def test_a_failed_test_is_the_exit_status_of_install_sh(tmp_path):
    script = f"""
        . {INSTALL.parent}/build/install/tests.sh
        die() {{ echo "install.sh: $1" >&2; exit 1; }}
        step() {{ :; }}; install_test_tools() {{ :; }}
        shown() {{ echo "1 failed" >"$LOG/$1.log"; [[ $CODE == 0 ]]; }}
        core_tests() {{ echo "[  PASSED  ] 1 test." | tee "$LOG/bazel-$1.log"; }}
        ROOT=$PWD LOG=$PWD tests=quick python=python wheel=''
        run_tests
    """
    for code in (1, 0):
        command = ["bash", "-euo", "pipefail", "-c", f"CODE={code}\n{script}"]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert run.returncode == code, run.stderr
        assert ("install.sh: some tests failed" in run.stderr) == bool(code)
    assert "googletest-plain: passed" in run.stdout and "1 failed" in run.stdout


def test_help_prints_the_usage():
    run = install("--help")
    assert run.returncode == 0 and run.stdout.startswith("Usage: ./install.sh")
