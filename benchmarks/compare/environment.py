"""Describes where a comparison ran, so that readers can judge the figures."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import columns
from benchmarks.runner import ROOT


def lines() -> list[str]:
    """A Markdown list: date, machine, versions, command and commit."""
    return [
        f"- {time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC; "
        f"load of the machine before the start: {os.getloadavg()[0]:.1f}",
        f"- {_processor()}, {len(columns.cores())} cores for this comparison, {_memory()} of "
        f"memory; {_system()}, Linux {platform.release()}",
        f"- Python {platform.python_version()}, {_package('tensorflow')}, {_package('numpy')}; "
        f"{_launcher()}",
        f"- tree {_tree()}",
        f"- command: `{' '.join(['python -m benchmarks.compare', *sys.argv[1:]])}`",
    ]


def _processor() -> str:
    found = re.search(r"^model name\s*: (.*)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return found[1] if found else platform.machine()


def _memory() -> str:
    found = re.search(r"^MemTotal:\s*(\d+) kB$", _read("/proc/meminfo"), re.MULTILINE)
    return f"{int(found[1]) / 2**20:.0f} GB" if found else "unknown"


def _system() -> str:
    found = re.search(r'^PRETTY_NAME="?([^"\n]*)', _read("/etc/os-release"), re.MULTILINE)
    return found[1] if found else platform.system()


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _package(name: str) -> str:
    try:
        return f"{name} {importlib.metadata.version(name)}"
    except importlib.metadata.PackageNotFoundError:
        return f"no {name}"


def _launcher() -> str:
    try:
        command = [columns.mpirun(sys.executable, 1)[0], "--version"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stdout.splitlines() or ["an unknown mpirun"])[0]


def _tree() -> str:
    def git(*words: str) -> str:
        command = ["git", "-C", str(ROOT), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "--short", "HEAD") + (", with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "without git"
