"""Hashes, and files and directories that are created atomically."""

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

from .errors import disk_full, is_disk_full
from .progress import say


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as source:
        while block := source.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def whole_file(directory: Path, prefix: str) -> Iterator[tuple[Path, BinaryIO]]:
    """Yields a new file in `directory`; removes it on exit, unless the body has renamed it.

    Removes leftovers of killed runs first.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob(f".{prefix}.*.part"):
        old.unlink(missing_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{prefix}.", suffix=".part", dir=directory)
    try:
        with os.fdopen(handle, "wb", buffering=1 << 20) as out:
            yield Path(name), out
    except OSError as error:
        raise (disk_full(directory) if is_disk_full(error) else error) from error
    finally:
        Path(name).unlink(missing_ok=True)


@contextlib.contextmanager
def whole_directory(destination: Path) -> Iterator[Path]:
    """Yields a new directory, which replaces `destination` when the body succeeds.

    One process at a time may do this: see only_one.
    """
    parent = destination.parent
    parent.mkdir(parents=True, exist_ok=True)
    for old in parent.glob(".new-*"):
        shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=parent) as name:
        fresh = Path(name) / "new"
        fresh.mkdir()
        try:
            yield fresh
        except OSError as error:
            raise (disk_full(parent) if is_disk_full(error) else error) from error
        if destination.exists():
            destination.rename(Path(name) / "old")
        fresh.rename(destination)


@contextlib.contextmanager
def only_one(directory: Path) -> Iterator[None]:
    """Lets one process at a time use `directory`; the others wait."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another build that uses {directory}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
