"""Whether another distribution has overwritten this wheel's files.

Two distributions may own site-packages/tensorflow, and pip silently lets the second overwrite the
first: each rank would then train alone on stock TensorFlow. at_start.py runs this file if a
launcher has started ranks; the doctor uses it, too. Neither TensorFlow nor this package is imported
here, because they may be incomplete or belong to another distribution.

The check reads one file, tensorflow/__init__.py, which every distribution of TensorFlow has and
ours changes. Only if that is not ours does it search all installed distributions.
"""

from __future__ import annotations

import json
import os
import sys

_INIT = "tensorflow/__init__.py"
_OURS = b"tensorflow.mpi"  # in _INIT, by patch 0001


def fault(site: str | None = None) -> str | None:
    """The fault of the files in the folder `site` (default: where this wheel is), or None."""
    site = site or _site()
    try:
        with open(os.path.join(site, *_INIT.split("/")), "rb") as file:
            if _OURS in file.read():
                return None
        what = "overwritten"
    except OSError:
        what = "removed"
    own, others = owners(site)
    by = " and ".join(others) or "a distribution that is no longer installed"
    return f"files of {own or 'this wheel'} were {what} by {by}"


def owners(site: str | None = None) -> tuple[str, list[str]]:
    """Our distribution, or "", and others that own tensorflow/__init__.py, as `name version`."""
    own, others = "", []
    for folder, is_ours in _distributions(site or _site()):
        name, _, version = folder.removesuffix(".dist-info").rpartition("-")
        if is_ours:
            own = f"{name} {version}"
        else:
            others.append(f"{name.replace('_', '-')} {version}")
    return own, others


def remedy(site: str | None = None) -> str:
    """The command line that restores our files."""
    import shlex

    site = site or _site()
    own, others = owners(site)
    python = shlex.quote(sys.executable)
    has_pip = os.path.isdir(os.path.join(site, "pip"))  # environments made by uv have none
    install = f"{python} -m pip install" if has_pip else f"uv pip install --python {python}"
    uninstall = (
        f"{python} -m pip uninstall -y" if has_pip else f"uv pip uninstall --python {python}"
    )
    wanted = own.replace(" ", "==")
    for folder, is_ours in _distributions(site):
        if is_ours:
            wanted = _source(os.path.join(site, folder)) or wanted
    names = " ".join(other.split()[0] for other in others)
    removal = f"{uninstall} {names} && " if names else ""
    return f'{removal}{install} --force-reinstall --no-deps "{wanted}"'


def _site() -> str:
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def _distributions(site: str) -> list[tuple[str, bool]]:
    """The dist-info folders that list tensorflow/__init__.py, each with whether it is ours."""
    found = []
    for folder in sorted(os.listdir(site)):
        try:
            if folder.endswith(".dist-info"):
                with open(os.path.join(site, folder, "RECORD"), "rb") as file:
                    record = b"\n" + file.read()
                if f"\n{_INIT},".encode() in record:
                    found.append((folder, b"\ntensorflow/mpi/__init__.py," in record))
        except OSError:
            continue
    return found


def _source(info: str) -> str | None:
    """The requirement for the wheel that pip installed, if that was a file and still exists."""
    import urllib.parse  # here: importing it takes longer than checking a sound installation

    try:
        with open(os.path.join(info, "direct_url.json"), encoding="utf-8") as file:
            url: str = json.load(file)["url"]
    except (OSError, ValueError, KeyError):
        return None
    if not os.path.exists(urllib.parse.unquote(url.removeprefix("file://"))):
        return None
    return f"tensorflow @ {url}"
