"""`python -m benchmarks`: see benchmarks/cli.py."""

from __future__ import annotations

from benchmarks.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
