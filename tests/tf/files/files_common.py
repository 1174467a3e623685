"""Helpers for scripts that write files: how much a process writes, and which files exist."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def written() -> int:
    """Bytes that this process has written to files and pipes since its start."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["wchar"])


def there_after(file: Path, save: Callable[[], Any], late: float) -> bool:
    """Sleeps for `late` seconds, saves, and returns whether `file` exists afterwards."""
    time.sleep(late)
    save()
    return file.exists()
