"""Hashes, and files and directories that appear whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from .progress import say


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as source:
        while block := source.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def whole_file(directory: Path, prefix: str) -> Iterator[tuple[Path, BinaryIO]]:
    """A new file in `directory`, removed on the way out unless the body renamed it.

    Leftovers of runs that were killed are removed first.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob(f".{prefix}.*.part"):
        old.unlink(missing_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{prefix}.", suffix=".part", dir=directory)
    try:
        with os.fdopen(handle, "wb", buffering=1 << 20) as out:
            yield Path(name), out
    finally:
        Path(name).unlink(missing_ok=True)


@contextlib.contextmanager
def whole_directory(destination: Path, scratch: Path) -> Iterator[Path]:
    """A new directory that takes the place of `destination` when the body succeeds."""
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        fresh = Path(name) / "new"
        fresh.mkdir()
        yield fresh
        destination.parent.mkdir(parents=True, exist_ok=True)
        if destination.exists():
            destination.rename(Path(name) / "old")
        fresh.rename(destination)


@contextlib.contextmanager
def only_one(cache: Path) -> Iterator[None]:
    """Builds in one cache take turns; scratch files of runs that were killed are removed."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another build that uses {cache}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(cache / "tmp", ignore_errors=True)
        yield
