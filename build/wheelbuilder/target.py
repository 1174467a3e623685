"""The Python that a wheel is built for."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass

from . import process
from .errors import BuildError

SUPPORTED = ((3, 10), (3, 11), (3, 12), (3, 13))

# Run by the interpreter in question; must work on any Python 3.
_PROBE = """
import json, platform, sys, sysconfig
print(json.dumps({
    "version": list(sys.version_info[:2]),
    "implementation": platform.python_implementation(),
    "system": platform.system(),
    "machine": platform.machine(),
    "bits": 64 if sys.maxsize > 2 ** 32 else 32,
    "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
}))
"""


@dataclass(frozen=True)
class Target:
    """A version of CPython, as pip and the names of wheels write it."""

    major: int
    minor: int

    @property
    def tag(self) -> str:
        return f"cp{self.major}{self.minor}"

    @property
    def version(self) -> str:
        return f"{self.major}.{self.minor}"


def describe(python: str | None) -> Target:
    """The target for an interpreter, given its path or name; None means the running one."""
    python = python or sys.executable
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    result = process.run(
        [python, "-I", "-c", _PROBE],
        missing=f"{python}: no such Python: give --python the path of an interpreter",
        env=environment,
    )
    if result.code:
        raise BuildError(
            f"{python} does not run: {result.last_line}: give --python another interpreter"
        )
    return _accept(python, json.loads(result.output.splitlines()[-1]))


def _accept(python: str, facts: dict[str, object]) -> Target:
    """Raises BuildError for an interpreter that has no official wheel."""
    version = facts["version"]
    assert isinstance(version, list)
    name = f"{facts['implementation']} {version[0]}.{version[1]}"
    if facts["free_threaded"]:
        name += " (free-threaded)"
    place = f"{facts['system']} {facts['machine']} {facts['bits']}-bit"
    wanted = f"CPython {SUPPORTED[0][0]}.{SUPPORTED[0][1]} to {SUPPORTED[-1][0]}.{SUPPORTED[-1][1]}"
    accepted = (
        tuple(version) in SUPPORTED
        and facts["implementation"] == "CPython"
        and not facts["free_threaded"]
        and place == "Linux x86_64 64-bit"
    )
    if not accepted:
        raise BuildError(
            f"{python} is {name} on {place}, but TensorFlow has wheels for {wanted} on Linux"
            " x86_64: give --python one of these"
        )
    return Target(*version)
