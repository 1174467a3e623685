"""`release`: builds the wheels for every Python, and records their sources and their sha256.

This needs none of those interpreters: our wheels differ only where TensorFlow's do.
"""

from __future__ import annotations

import json
import platform
import re
from pathlib import Path

from . import process
from .errors import BuildError
from .files import sha256_of, whole_file
from .inputs.bazel import compiler
from .inputs.mpi import find_mpi
from .inputs.official import official_wheel
from .layout import Layout
from .lock import read_lock
from .make import digest_of_inputs, make
from .target import SUPPORTED, Target

# A release must install on the oldest glibc that the default version's official wheel accepts.
_NEWEST_GLIBC = (2, 27)
SUMS, PROVENANCE = "SHA256SUMS", "provenance.json"


def release(layout: Layout, out: Path, jobs: int | None = None) -> list[str]:
    """Builds all wheels in `out`, checks their platform, and writes SHA256SUMS and provenance."""
    lock = read_lock(layout.lock)
    # One hash per Python; older TensorFlows have no wheels for the newest Pythons.
    targets = [Target(*version) for version in SUPPORTED[: len(lock.hashes)]]
    wheels = []
    for target in targets:
        wheels.append(make(layout, target, out, jobs))
        check_platform(wheels[-1].name)
    facts: dict[str, object] = {
        "version": lock.our_version,
        **_source(layout.root),
        "compiler": compiler(),
        "bazel": process.run(["bazel", "--version"], missing="no bazel").last_line,
        "mpi": find_mpi().name,
        "system": f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {platform.machine()}, "
        + "-".join(platform.libc_ver()),
        "wheels": [
            {
                "wheel": wheel.name,
                "sha256": sha256_of(wheel),
                "official": (official := official_wheel(layout, lock, target)).name,
                "official_sha256": sha256_of(official),
                "inputs": digest_of_inputs(layout, lock, target, find_mpi(), compiler()),
            }
            for wheel, target in zip(wheels, targets, strict=True)
        ],
    }
    _write(out, PROVENANCE, json.dumps(facts, indent=2) + "\n")
    names = [*(wheel.name for wheel in wheels), PROVENANCE]
    sums = "".join(f"{sha256_of(out / name)}  {name}\n" for name in names)
    _write(out, SUMS, sums)
    return [f"{out / name}" for name in [*names, SUMS]]


def check_platform(wheel: str) -> None:
    """Refuses a wheel that would not install where the official one does."""
    match = re.search(r"-manylinux_(\d+)_(\d+)_x86_64\.whl$", wheel)
    if not match or (int(match[1]), int(match[2])) > _NEWEST_GLIBC:
        raise BuildError(
            f"{wheel} needs a newer glibc or libstdc++ than a Linux with glibc {_NEWEST_GLIBC[0]}."
            f"{_NEWEST_GLIBC[1]} has: define the missing functions in tensorflow_patches/portable"
        )


def _source(root: Path) -> dict[str, object]:
    """The commit that was built, and whether the checkout differs from it."""
    git = ["git", "-C", str(root)]
    missing = "the program git is missing: install it (apt-get install git)"
    commit = process.run([*git, "rev-parse", "HEAD"], missing=missing)
    changes = process.run([*git, "status", "--porcelain"], missing=missing)
    if commit.code or changes.code:
        raise BuildError(f"{root} is not a git checkout, and a release records its commit: use one")
    return {"commit": commit.last_line, "changed_since": bool(changes.output.strip())}


def _write(out: Path, name: str, text: str) -> None:
    with whole_file(out, name) as (path, stream):
        stream.write(text.encode())
        stream.flush()
        path.chmod(0o644)
        path.replace(out / name)
