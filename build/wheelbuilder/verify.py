"""`verify`: compares a patched wheel with the official one and lists what it adds and changes.

The lock pins the official wheel by sha256. An entry is untouched if its raw bytes in the archive
and its RECORD line equal the official ones. Any other entry must be one of these:

- a file that the series patches, METADATA or WHEEL, with exactly the content that this checkout
  produces;
- RECORD, which must list exactly the wheel's files, with their hashes;
- ours: in tensorflow/mpi, or tensorflow_mpi.pth.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from .errors import BuildError
from .inputs.official import check_hash
from .layout import DISTRIBUTION, FLAVOURS, PACKAGE, START_FILE, Layout
from .lock import Lock, for_version, read_lock
from .make import official_for
from .series import Patch, apply_series, read_series
from .wheelfile import record
from .wheelfile.metadata import edit_metadata, edit_wheel, wheel_tag
from .wheelfile.rawzip import RawZip


@dataclass
class Proof:
    """The result of a comparison; the names are those in the patched wheel."""

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    untouched: int = 0

    def lines(self) -> list[str]:
        listed = [f"added    {name}" for name in self.added]
        listed += [f"changed  {name}" for name in self.changed]
        return [
            *listed,
            f"{len(self.added)} added, {len(self.changed)} changed, {self.untouched} untouched",
        ]


def verify(layout: Layout, wheel: Path) -> Proof:
    """Compares `wheel` with the official wheel, which is fetched if it is not in the cache."""
    layout, parts = layout_of(layout, wheel), wheel.name.removesuffix(".whl").split("-")
    lock = read_lock(layout.lock)
    if len(parts) != 5 or parts[1] != lock.our_version:
        raise BuildError(
            f"{wheel.name} is not a wheel of {DISTRIBUTION} {lock.our_version}: give one that is"
        )
    official = official_for(layout, lock, parts[2])
    check_hash(official, lock)
    patches = read_series(layout.patches, layout.other_version)
    return compare(
        wheel, official, lock, patches, layout.scratch, may_move=bool(layout.other_version)
    )


def layout_of(layout: Layout, wheel: Path) -> Layout:
    """The layout for the flavour and the TensorFlow version in the wheel's name."""
    name, _, rest = wheel.name.partition("-")
    version, _, release = rest.partition("-")[0].partition("+")
    for flavour in FLAVOURS:
        if name == DISTRIBUTION and release == flavour.release:
            return for_version(replace(layout, flavour=flavour), version)
    known = " or ".join(f"…+{flavour.release}" for flavour in FLAVOURS)
    raise BuildError(f"{wheel.name} is not a wheel of {DISTRIBUTION} {known}: give one that is")


def compare(
    wheel: Path,
    official: Path,
    lock: Lock,
    patches: list[Patch],
    scratch: Path,
    *,
    may_move: bool = False,
) -> Proof:
    with RawZip(wheel) as ours, RawZip(official) as theirs:
        expected = apply_series(patches, theirs.read, scratch, may_move=may_move)
        return _Comparison(ours, theirs, lock).run(expected)


class _Comparison:
    """`ours`: the patched wheel; `theirs`: the official one."""

    def __init__(self, ours: RawZip, theirs: RawZip, lock: Lock) -> None:
        self.ours, self.theirs, self.lock = ours, theirs, lock
        self.record_name = f"{lock.our_dist_info}/RECORD"
        self.rows = self._rows(ours, lock.our_dist_info)
        self.official_rows = self._rows(theirs, lock.official_dist_info)

    def run(self, patched: dict[str, bytes]) -> Proof:
        """`patched`: the files that the series changes, with their patched content."""
        self._check_listing()
        expected = patched | self._expected_dist_info()
        proof = Proof()
        accounted = set()
        for name in self.theirs.entries:
            ours = self._renamed(name)
            accounted.add(ours)
            if ours not in self.ours.entries:
                raise BuildError(f"{ours} of the official wheel is missing: do not use this wheel")
            if ours == self.record_name:
                proof.changed.append(ours)
            elif ours in expected:
                self._check_changed(ours, expected[ours])
                proof.changed.append(ours)
            else:
                self._check_untouched(ours, name)
                proof.untouched += 1
        for name in self.ours.entries:
            if name not in accounted:
                self._check_added(name)
                proof.added.append(name)
        return proof

    def _rows(self, archive: RawZip, dist_info: str) -> record.Rows:
        name = f"{dist_info}/RECORD"
        if name not in archive.entries:
            raise BuildError(
                f"{archive.path} has no {name}, so its name is wrong: do not use this wheel"
            )
        return record.parse(archive.read(name), f"{archive.path}: {name}")

    def _check_listing(self) -> None:
        """Checks that RECORD lists exactly the files of the wheel."""
        files = set(self.ours.files())
        if unlisted := sorted(files - self.rows.keys()):
            raise BuildError(f"{unlisted[0]} is not in RECORD: do not use this wheel")
        if absent := sorted(self.rows.keys() - files):
            raise BuildError(
                f"{absent[0]} is in RECORD but not in the wheel: do not use this wheel"
            )

    def _expected_dist_info(self) -> dict[str, bytes]:
        """METADATA and WHEEL as the builder edits the official ones."""
        old, new = self.lock.official_dist_info, self.lock.our_dist_info
        tag = "-".join(self.ours.path.name.removesuffix(".whl").split("-")[2:])
        official_tag = wheel_tag(self.theirs.read(f"{old}/WHEEL"))
        if tag.split("-")[:2] != official_tag.split("-")[:2]:
            raise BuildError(
                f"{self.ours.path.name} was made from a wheel for {official_tag}: do not use it"
            )
        metadata = self.theirs.read(f"{old}/METADATA")
        return {
            f"{new}/METADATA": edit_metadata(metadata, self.lock),
            f"{new}/WHEEL": edit_wheel(self.theirs.read(f"{old}/WHEEL"), tag),
        }

    def _check_changed(self, name: str, expected: bytes) -> None:
        if self._checked(name) != expected:
            raise BuildError(
                f"{name} differs from the one that this checkout produces: build the wheel again"
            )

    def _check_added(self, name: str) -> None:
        ours = name.startswith(f"{PACKAGE}/") or name == START_FILE
        if not ours or name.endswith("/"):
            raise BuildError(f"{name} was added outside {PACKAGE}: do not use this wheel")
        self._checked(name)

    def _checked(self, name: str) -> bytes:
        """The content; raises BuildError if RECORD has another hash."""
        self.ours.raw(name)  # checks the entry's local header
        data = self.ours.read(name)
        if self.rows[name] != record.row_of(data):
            raise BuildError(f"{name} does not match its hash in RECORD: do not use this wheel")
        return data

    def _check_untouched(self, ours: str, theirs: str) -> None:
        entry, official = self.ours.entries[ours], self.theirs.entries[theirs]
        same = (
            self.ours.raw(ours) == self.theirs.raw(theirs)
            and entry.compress_type == official.compress_type
            and entry.file_size == official.file_size
            and entry.CRC == official.CRC
            and entry.external_attr == official.external_attr
        )
        if not same:
            raise BuildError(f"{ours} differs from the official wheel's: do not use this wheel")
        if not ours.endswith("/") and self.rows[ours] != self.official_rows.get(theirs):
            raise BuildError(
                f"{ours} has another line in RECORD than in the official wheel's RECORD: do not use"
                " this wheel"
            )

    def _renamed(self, name: str) -> str:
        head, slash, tail = name.partition("/")
        new = self.lock.our_dist_info if head == self.lock.official_dist_info else head
        return f"{new}{slash}{tail}"
