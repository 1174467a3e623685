"""Compiles the C++ with Bazel."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from .. import process
from ..errors import BuildError, disk_full
from ..layout import LIBRARIES, Layout
from ..progress import say
from ..wheelfile.elf import check_library

_NO_BAZEL = (
    "the program bazel is missing: apt-get install --no-install-recommends bazel-bootstrap"
    " bazel-rules-java bazel-rules-proto bazel-platforms bazel-skylib"
)
_MAX_JOBS = 4  # compiling a file that includes TensorFlow's headers takes 1 GB of memory


def compiler() -> str:
    """The first line of the C++ compiler's --version. Bazel uses CC, else gcc."""
    name = os.environ.get("CC", "gcc")
    missing = f"the C++ compiler {name} is missing: apt-get install g++, or set CC to another one"
    if not shutil.which(name) or (name == "gcc" and not shutil.which("g++")):
        raise BuildError(missing)
    return process.run([name, "--version"], missing=missing).output.partition("\n")[0].strip()


def build_libraries(
    layout: Layout, jobs: int | None = None, *, keep_going: bool = False
) -> dict[str, Path]:
    """Runs Bazel, checks our libraries, and returns their paths by name.

    With `keep_going`, Bazel's log (layout.logs / "bazel.log") lists the errors of every file.
    """
    say("compiling the C++ with Bazel (a minute or two the first time)")
    log = layout.logs / "bazel.log"
    jobs = jobs or min(len(os.sched_getaffinity(0)), _MAX_JOBS)
    links = layout.cache / "bazel-"
    command = [
        *("bazel", "--batch", f"--output_user_root={layout.cache / 'bazel'}"),
        *("build", f"--jobs={jobs}", f"--symlink_prefix={links}"),
        *(["--keep_going"] if keep_going else []),
        *(library.target for library in LIBRARIES),
    ]
    result = process.run(command, missing=_NO_BAZEL, cwd=layout.root, log=log)
    # Some versions of Bazel create this link in spite of --symlink_prefix.
    stray = layout.root / "bazel-out"
    if stray.is_symlink():
        stray.unlink()
    if result.code:
        raise _bazel_error(result, log)
    built: dict[str, Path] = {}
    forbidden = [os.fsencode(layout.root), os.fsencode(layout.cache)]
    for library in LIBRARIES:
        path = Path(f"{links}bin") / library.output
        check_library(path, library, forbidden)
        built[library.name] = path
    return built


def _bazel_error(result: process.Result, log: Path) -> BuildError:
    if process.NO_SPACE in result.output:
        return disk_full(log)
    line = result.first_line_with(
        "undefined reference", "ld.bfd: ", ": fatal error: ", ": error: ", "ERROR:"
    )
    return BuildError(f"the C++ did not build: {line}: see the full output in {log}")
