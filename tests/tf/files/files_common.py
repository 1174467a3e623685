"""What the scripts that write files share: how much a process writes, and what is there after."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def written() -> int:
    """Bytes that this process has handed to write(), to files and pipes, since its start."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["wchar"])


def there_after(file: Path, save: Callable[[], Any], late: float) -> bool:
    """Sleeps for `late` seconds, saves, and tells whether `file` is there when `save` returns."""
    time.sleep(late)
    save()
    return file.exists()
