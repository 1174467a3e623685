"""`make`: builds the patched wheel from the official one and this checkout."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from .errors import BuildError
from .files import only_one, sha256_of
from .inputs.bazel import build_libraries, compiler
from .inputs.mpi import Mpi, find_mpi
from .inputs.official import check_hash, mpich_wheel, official_wheel
from .inputs.staging import stage_mpi, stage_tensorflow
from .layout import BUILD_INFO, CPU, DISTRIBUTION, LIBRARY_DIR, Layout
from .lock import Lock, read_lock
from .progress import say
from .series import apply_series, read_series
from .target import Target
from .wheelfile.elf import symbol_versions
from .wheelfile.metadata import edit_metadata, edit_wheel, wheel_tag
from .wheelfile.payload import build_info, payload
from .wheelfile.platform_tag import merge, platform_tag, versions_of_wheel
from .wheelfile.wheeledit import WheelEditor

# The parts of the checkout that affect the wheel.
_INPUTS = ("tensorflow_patches", "third_party", "build/wheelbuilder")
_INPUT_FILES = (
    *("WORKSPACE", "MODULE.bazel", "BUILD.bazel", ".bazelrc", ".bazelignore"),
    *("build/requirements.txt", "build/wheel.py"),
)
_NOT_INPUTS = {"__pycache__", ".mypy_cache", ".ruff_cache"}


@dataclass(frozen=True)
class Made:
    """What .cache/made records of a wheel: its inputs, and how to see whether it has changed."""

    inputs: str
    wheel: str
    size: int
    mtime_ns: int
    sha256: str


def make(layout: Layout, target: Target, out: Path, jobs: int | None = None) -> Path:
    """Builds the wheel for `target` in `out`, unless one built from the same inputs is there."""
    lock = read_lock(layout.lock)
    patches = read_series(layout.patches, layout.other_version)
    mpi = find_mpi()
    inputs = digest_of_inputs(layout, lock, target, mpi, compiler())
    out_digest = hashlib.sha256(str(out.resolve()).encode()).hexdigest()[:12]
    parts = (layout.flavour.name, layout.other_version, target.tag, out_digest)
    made_file = layout.cache / "made" / f"{'-'.join(filter(None, parts))}.json"
    present = made_before(made_file, inputs, out)
    if present:
        say(f"{present.name} is up to date")
        return present
    with only_one(layout.external):
        official = official_wheel(layout, lock, target)
        sha256 = check_hash(official, lock)
        say(f"official wheel {official.name}, sha256 {sha256[:16]}…")
        _stage_headers(layout, target)
        stage_mpi(layout, mpi, mpich_wheel(layout))
        say(f"{len(patches)} patches; {compiler()}; {mpi.name}")
        with WheelEditor(official, lock.official_dist_info) as wheel:
            # The patches come before the compiler, because a failure shows within a second.
            changed = apply_series(
                patches, wheel.read, layout.scratch, may_move=bool(layout.other_version)
            )
            libraries = build_libraries(layout, jobs)
            added = payload(layout.package, layout.start_file, libraries)
            content = changed | added
            added[BUILD_INFO] = build_info(lock.our_version, lock.version, mpi.name, content)
            needs = versions_of_wheel(official, layout.cache / "elf" / f"{sha256}.json")
            for path in libraries.values():
                with path.open("rb") as stream:
                    merge(needs, symbol_versions(stream))
            say(f"packing {len(changed)} changed and {len(added)} added files")
            result = pack(wheel, lock, changed, added, needs, out)
        remember(made_file, inputs, result)
    say(f"made {result.name}, {result.stat().st_size / 1e6:.1f} MB")
    return result


def _stage_headers(layout: Layout, target: Target) -> None:
    """Stages the CPU wheel's headers for every flavour, so that all wheels hold the same library.

    Everything that the C++ uses is in both wheels (tests/tf/internals/test_cuda_free.py). A library
    compiled against the GPU wheel would differ in the order of its symbols, and ranks compare the
    hashes of their files.
    """
    basis = replace(layout, flavour=CPU)
    lock = read_lock(basis.lock)
    official = official_wheel(basis, lock, target)
    stage_tensorflow(layout, official, check_hash(official, lock))


def pack(
    wheel: WheelEditor,
    lock: Lock,
    changed: dict[str, bytes],
    added: dict[str, bytes],
    needs: dict[str, set[str]],
    out: Path,
) -> Path:
    """Writes the wheel with these changes; the result is reproducible byte for byte."""
    old_info = lock.official_dist_info
    wheel_file, metadata = wheel.read(f"{old_info}/WHEEL"), wheel.read(f"{old_info}/METADATA")
    python, abi, official_platform = wheel_tag(wheel_file).split("-")
    tag = f"{python}-{abi}-{platform_tag(needs, official_platform)}"
    for name, data in changed.items():
        wheel.replace(name, data)
    for name, data in added.items():
        wheel.add(name, data, program=name.startswith(f"{LIBRARY_DIR}/"))
    wheel.replace(f"{old_info}/WHEEL", edit_wheel(wheel_file, tag))
    wheel.replace(f"{old_info}/METADATA", edit_metadata(metadata, lock))
    wheel.rename_dist_info(lock.our_dist_info)
    return wheel.write_to(out, f"{DISTRIBUTION}-{lock.our_version}-{tag}.whl")


def digest_of_inputs(
    layout: Layout, lock: Lock, target: Target, mpi: Mpi, compiler_name: str
) -> str:
    """A hash of everything that can change the wheel."""
    facts = {
        "target": asdict(target),
        "official": lock.official_name,
        "version": lock.our_version,
        "mpi": mpi.identity,
        "compiler": compiler_name,
        "files": {
            str(path.relative_to(layout.root)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in _input_files(layout.root)
        },
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _input_files(root: Path) -> list[Path]:
    found = [root / name for name in _INPUT_FILES if (root / name).exists()]
    for part in _INPUTS:
        for path in sorted((root / part).rglob("*")):
            if path.is_file() and not _NOT_INPUTS.intersection(path.parts):
                found.append(path)
    return found


def _recall(made_file: Path) -> Made | None:
    try:
        return Made(**json.loads(made_file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def made_before(made_file: Path, inputs: str, out: Path) -> Path | None:
    """The wheel built from these inputs, if it still exists unchanged."""
    made = _recall(made_file)
    if made is None or made.inputs != inputs:
        return None
    wheel = out / made.wheel
    try:
        found = wheel.stat()
    except OSError:
        return None
    if found.st_size != made.size:
        return None
    if found.st_mtime_ns != made.mtime_ns and sha256_of(wheel) != made.sha256:
        return None
    return wheel


def remember(made_file: Path, inputs: str, wheel: Path) -> None:
    """Records the wheel, and removes the previous one if it had another name (platform)."""
    before = _recall(made_file)
    if before and before.wheel != wheel.name:
        (wheel.parent / before.wheel).unlink(missing_ok=True)
    found = wheel.stat()
    made = Made(inputs, wheel.name, found.st_size, found.st_mtime_ns, sha256_of(wheel))
    made_file.parent.mkdir(parents=True, exist_ok=True)
    part = made_file.with_suffix(".part")
    part.write_text(json.dumps(asdict(made)), encoding="utf-8")
    part.replace(made_file)


def official_for(layout: Layout, lock: Lock, tag: str) -> Path:
    """The official wheel that a wheel with this Python tag was built from."""
    if not (tag.startswith("cp3") and tag[3:].isdigit()):
        raise BuildError(f"a wheel for {tag} was not made by this builder: give another wheel")
    return official_wheel(layout, lock, Target(3, int(tag[3:])))
