"""Runs other programs and keeps their output for error messages."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from .errors import BuildError

NO_SPACE = "No space left on device"


@dataclass(frozen=True)
class Result:
    code: int
    output: str

    @property
    def last_line(self) -> str:
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        return lines[-1] if lines else f"exit status {self.code}, no output"

    def first_line_with(self, *words: str) -> str:
        """The first line with the first of `words` that occurs anywhere; else the last line."""
        for word in words:
            for line in self.output.splitlines():
                if word in line:
                    return line.strip()
        return self.last_line


def run(
    command: Sequence[str],
    *,
    missing: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    log: Path | None = None,
    text: str = "",
) -> Result:
    """Runs a command to completion and returns its stdout and stderr, interleaved.

    Raises BuildError(missing) if the program does not exist. With `log`, the command writes its
    output to that file while it runs. `text` is its stdin.
    """
    try:
        if log is None:
            done = _run(command, cwd, env, text, subprocess.PIPE)
            return Result(done.returncode, done.stdout.decode("utf-8", "replace"))
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as sink:
            code = _run(command, cwd, env, text, sink).returncode
        return Result(code, log.read_text(encoding="utf-8", errors="replace"))
    except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
        raise BuildError(missing) from error


def _run(
    command: Sequence[str],
    cwd: Path | None,
    env: Mapping[str, str] | None,
    text: str,
    sink: BinaryIO | int,
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command,
        cwd=cwd,
        env=env,
        input=text.encode(),
        stdout=sink,
        stderr=subprocess.STDOUT,
        check=False,
    )
