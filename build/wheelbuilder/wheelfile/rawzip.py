"""ZIP archives whose entries are copied without decompressing them.

`zipfile` finds the entries; this module reads their raw bytes and writes archives. So a 270 MB
wheel is copied in half a second, and unchanged entries keep their exact bytes.
"""

from __future__ import annotations

import mmap
import struct
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

from ..errors import BuildError

_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_UTF8 = 0x800
_ENCRYPTED = 0x1
_UNIX = 3
_LIMIT = 0xFFFFFFFF

DateTime = tuple[int, int, int, int, int, int]


class RawZip:
    """An archive open for reading raw entries. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise BuildError(f"{path}: {error.strerror}: give the path of a wheel") from error
        try:
            self._zip = zipfile.ZipFile(self._file)
            self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        except (zipfile.BadZipFile, ValueError) as error:
            self._file.close()
            raise BuildError(f"{path} is not a wheel ({error}): delete it and run again") from error
        self.entries: dict[str, zipfile.ZipInfo] = {}
        for info in self._zip.infolist():
            if info.filename in self.entries:
                raise BuildError(f"{path}: two entries are named {info.filename}: do not use it")
            self.entries[info.filename] = info

    def __enter__(self) -> RawZip:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._zip.close()
        self._map.close()
        self._file.close()

    def files(self) -> list[str]:
        return [name for name in self.entries if not name.endswith("/")]

    def raw(self, name: str) -> bytes:
        """The entry's bytes as stored in the archive; checks its name in the local header."""
        info = self.entries[name]
        start = info.header_offset
        header = self._map[start : start + _LOCAL.size]
        if len(header) < _LOCAL.size or header[:4] != b"PK\x03\x04":
            raise BuildError(
                f"{self.path}: no local header for {name}: delete the wheel and run again"
            )
        fields = _LOCAL.unpack(header)
        name_length, extra_length = fields[9], fields[10]
        start += _LOCAL.size
        if self._map[start : start + name_length] != _encoded(info):
            raise BuildError(
                f"{self.path}: the local header of {name} has another name: do not use it"
            )
        start += name_length + extra_length
        data = self._map[start : start + info.compress_size]
        if len(data) != info.compress_size or info.flag_bits & _ENCRYPTED:
            raise BuildError(
                f"{self.path}: {name} is truncated or encrypted: delete the wheel and run again"
            )
        return data

    def read(self, name: str) -> bytes:
        """The entry's content, decompressed and checked against its CRC."""
        try:
            return self._zip.read(name)
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise BuildError(f"{self.path}: {name} is damaged ({error}): do not use it") from error

    def stream(self, name: str) -> BinaryIO:
        return self._zip.open(name)  # type: ignore[return-value]


class RawZipWriter:
    """Writes an archive from entries copied from other archives and entries stored here."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self._offset = 0
        self._central: list[bytes] = []

    def copy(self, source: RawZip, name: str, as_name: str) -> None:
        self._entry(source.entries[name], as_name, source.raw(name))

    def store(self, name: str, data: bytes, when: DateTime, mode: int) -> None:
        """Adds an uncompressed file; compressed bytes would depend on the machine's zlib."""
        info = zipfile.ZipInfo(name, when)
        info.create_system = _UNIX
        info.external_attr = (0o100000 | mode) << 16
        info.CRC = zlib.crc32(data)
        info.file_size = info.compress_size = len(data)
        self._entry(info, name, data)

    def close(self) -> None:
        """Writes the central directory."""
        directory = b"".join(self._central)
        count = len(self._central)
        if count > 0xFFFE or self._offset + len(directory) > _LIMIT:
            raise BuildError("the wheel needs ZIP64, which is not implemented: file an issue")
        end = _END.pack(b"PK\x05\x06", 0, 0, count, count, len(directory), self._offset, 0)
        self._out.write(directory + end)

    def _entry(self, info: zipfile.ZipInfo, name: str, data: bytes) -> None:
        raw_name = name.encode("utf-8")
        flags = _UTF8 if not name.isascii() else 0
        year, month, day, hour, minute, second = info.date_time
        date = (year - 1980) << 9 | month << 5 | day
        time = hour << 11 | minute << 5 | second // 2
        common = (
            flags,
            info.compress_type,
            time,
            date,
            info.CRC,
            info.compress_size,
            info.file_size,
            len(raw_name),
            0,
        )
        if self._offset + len(data) > _LIMIT or info.file_size > _LIMIT:
            raise BuildError("the wheel needs ZIP64, which is not implemented: file an issue")
        local = _LOCAL.pack(b"PK\x03\x04", info.extract_version, *common) + raw_name
        made_by = info.create_version | info.create_system << 8
        self._central.append(
            _CENTRAL.pack(
                b"PK\x01\x02",
                made_by,
                info.extract_version,
                *common,
                0,
                0,
                info.internal_attr,
                info.external_attr,
                self._offset,
            )
            + raw_name
        )
        self._out.write(local)
        self._out.write(data)
        self._offset += len(local) + len(data)


def _encoded(info: zipfile.ZipInfo) -> bytes:
    return info.orig_filename.encode("utf-8" if info.flag_bits & _UTF8 else "cp437")
