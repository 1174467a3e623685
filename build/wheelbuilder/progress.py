"""Progress lines on stdout, each with the seconds since the start."""

from __future__ import annotations

import time

_start = time.monotonic()


def say(message: str) -> None:
    print(f"[{time.monotonic() - _start:5.1f} s] {message}", flush=True)
