"""RECORD: the list of a wheel's files with their hashes and sizes."""

from __future__ import annotations

import base64
import csv
import hashlib
import io

from ..errors import BuildError

# name -> (hash, size), both as written in RECORD, and empty for RECORD itself.
Rows = dict[str, tuple[str, str]]


def row_of(data: bytes) -> tuple[str, str]:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"sha256={digest}", str(len(data))


def parse(data: bytes, where: str) -> Rows:
    rows: Rows = {}
    for line in csv.reader(io.StringIO(data.decode("utf-8"))):
        if not line:
            continue
        if len(line) != 3 or line[0] in rows:
            raise BuildError(
                f"{where}: bad or repeated line for {line[0]!r}: delete the wheel and run again"
            )
        rows[line[0]] = (line[1], line[2])
    return rows


def render(rows: Rows) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for name, (digest, size) in rows.items():
        writer.writerow((name, digest, size))
    return out.getvalue().encode("utf-8")
