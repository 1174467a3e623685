"""Edits a wheel inside a `with` statement, as auditwheel does.

    with WheelEditor(official, dist_info) as wheel:
        wheel.replace("tensorflow/__init__.py", data)
        wheel.write_to(directory, name)

Nothing is unpacked: entries that are not edited are copied raw, and so are their RECORD lines.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import BuildError
from ..files import whole_file
from . import record
from .rawzip import RawZip, RawZipWriter

_FILE = 0o644
_PROGRAM = 0o755


class WheelEditor:
    def __init__(self, source: Path, dist_info: str) -> None:
        self._zip = RawZip(source)
        self._old_info = self._new_info = dist_info
        if self._record_name(dist_info) not in self._zip.entries:
            self._zip.close()
            raise BuildError(f"{source} has no {dist_info}/RECORD: delete this wheel and run again")
        self._changed: dict[str, bytes] = {}
        self._added: dict[str, tuple[bytes, int]] = {}

    def __enter__(self) -> WheelEditor:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def read(self, name: str) -> bytes:
        if name not in self._zip.entries:
            raise BuildError(
                f"{self._zip.path} has no {name}: adapt the builder or the patches to this version"
            )
        return self._zip.read(name)

    def replace(self, name: str, data: bytes) -> None:
        """Replaces a file's content; its mode and date stay."""
        if name not in self._zip.entries:
            raise BuildError(
                f"cannot change {name}, which is not in the wheel: adapt the builder or the patches"
                " to this version"
            )
        self._changed[name] = data

    def add(self, name: str, data: bytes, *, program: bool = False) -> None:
        if name in self._zip.entries or name in self._added:
            raise BuildError(f"cannot add {name}, which is already in the wheel: rename it")
        self._added[name] = (data, _PROGRAM if program else _FILE)

    def rename_dist_info(self, name: str) -> None:
        self._new_info = name

    def write_to(self, directory: Path, name: str) -> Path:
        """Writes the edited wheel to directory/name, atomically."""
        destination = directory / name
        with whole_file(directory, "wheel") as (path, out):
            writer = RawZipWriter(out)
            self._write(writer)
            writer.close()
            out.flush()
            os.fsync(out.fileno())
            path.chmod(_FILE)
            path.replace(destination)
        return destination

    def _write(self, writer: RawZipWriter) -> None:
        old_record = self._record_name(self._old_info)
        official = record.parse(self._zip.read(old_record), f"{self._zip.path}: {old_record}")
        when = self._zip.entries[old_record].date_time  # the same in every build
        rows: record.Rows = {}
        for name, info in self._zip.entries.items():
            if name == old_record:
                continue
            as_name = self._renamed(name)
            data = self._changed.get(name)
            if data is not None:
                writer.store(as_name, data, info.date_time, info.external_attr >> 16 & 0o777)
                rows[as_name] = record.row_of(data)
                continue
            writer.copy(self._zip, name, as_name)
            if not name.endswith("/"):
                if name not in official:
                    raise BuildError(f"{self._zip.path}: {name} is not in RECORD: do not use it")
                rows[as_name] = official[name]
        for name in sorted(self._added):
            data, mode = self._added[name]
            writer.store(name, data, when, mode)
            rows[name] = record.row_of(data)
        new_record = self._record_name(self._new_info)
        rows[new_record] = ("", "")
        writer.store(new_record, record.render(rows), when, _FILE)

    def _renamed(self, name: str) -> str:
        head, slash, tail = name.partition("/")
        return f"{self._new_info}{slash}{tail}" if head == self._old_info else name

    @staticmethod
    def _record_name(dist_info: str) -> str:
        return f"{dist_info}/RECORD"
