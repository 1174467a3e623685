"""Keeps the output of one plain process as the reference that ranks are compared with.

    (alone,) = reference(scripts / "compiled.py", args=["train"])

Averaging is off in a plain process, so its results depend only on the script, on the Python files
of the environment's TensorFlow and on the processor, not on our library. The results under
.cache/references are reused while all of these are the same, to the byte. `rm -r
.cache/references`, or ./install.sh --test-all, deletes them.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import installed
from launch import SHARED, launch
from wheelbuilder.files import only_one

KEPT = Path(__file__).resolve().parents[1] / ".cache" / "references"
ENVIRONMENTS = 4  # for the last of which a script's results are kept
# Results also depend on these variables; no test sets them.
VARIABLES = ("TF_", "KERAS_", "OMP_", "XLA_")


def reference(
    script: Path, *, args: Sequence[str] = (), timeout: float = 300
) -> list[dict[str, Any]]:
    """The results of `launch(script, np=0, args=args).check()`, computed once.

    args: words, without paths that belong to this run.
    """
    words = [script.name, *args]
    name = f"{script.stem}-{hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]}"
    path = KEPT / f"{name}-{_key(script, words)[:32]}.json"
    with only_one(KEPT / "locks" / name):
        if not path.exists():
            run = launch(script, np=0, args=args, timeout=timeout, pooled=True)
            results = run.check().results
            fresh = path.with_suffix(".new")
            fresh.write_text(json.dumps(results))
            fresh.replace(path)
            for old in sorted(KEPT.glob(f"{name}-*.json"), key=os.path.getmtime)[:-ENVIRONMENTS]:
                old.unlink()
        return list(json.loads(path.read_text()))


def _key(script: Path, words: Sequence[str]) -> str:
    digest = hashlib.sha256(json.dumps([list(words), _environment()]).encode())
    for file in sorted(set(_modules(script))):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def _modules(script: Path) -> Iterator[Path]:
    """The script and the test modules that it imports."""
    yield script
    for node in ast.walk(ast.parse(script.read_text())):
        names = [node.module] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            for file in (script.parent / f"{name}.py", SHARED / f"{name}.py"):
                if name and file.exists():
                    yield from _modules(file)


@functools.cache
def _environment() -> list[str]:
    """All that affects a plain process's results: processor, versions, TensorFlow's files."""
    cpu = [
        line
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith(("model name", "flags"))
    ]
    packages = [f"{d.name} {d.version}" for d in importlib.metadata.distributions()]
    known = {k: v for k, v in os.environ.items() if k.startswith(VARIABLES)}
    known.pop("TF_MPI_EXTRAS", None)  # affects only averaging, which is off here
    variables = [f"{name}={value}" for name, value in known.items()]
    distribution = installed.distribution()
    assert distribution is not None
    files = hashlib.sha256()
    ours = Path(str(distribution.locate_file("tensorflow/mpi")))
    for path in sorted(
        ours.rglob("*.py")
    ):  # a developer may have copied newer ones than the wheel's
        files.update(str(path.relative_to(ours)).encode() + path.read_bytes())
    for file in sorted(map(str, distribution.files or ())):
        path = Path(str(distribution.locate_file(file)))
        if file.startswith("tensorflow/mpi/") or not path.exists():
            continue
        content = path.read_bytes() if file.endswith(".py") else b"%d" % path.stat().st_size
        files.update(file.encode() + content)
    return [
        platform.machine(),
        sys.version,
        *sorted(set(cpu)),
        *sorted(packages),
        *sorted(variables),
        files.hexdigest(),
    ]
