"""A temporary environment for pip, and its state."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pip

_INSTALLATION = Path(__file__).parents[2] / "tensorflow_patches" / "python" / "installation.py"


@dataclass(frozen=True)
class Venv:
    """An environment that contains pip and whatever a test installs."""

    folder: Path

    @staticmethod
    def make(folder: Path) -> Venv:
        make = [sys.executable, "-m", "venv", "--without-pip", str(folder)]
        subprocess.run(make, check=True, timeout=120)
        venv = Venv(folder)
        here = Path(pip.__file__).parent
        for path in (here, *here.parent.glob("pip-*.dist-info")):
            (venv.site / path.name).symlink_to(path)
        return venv

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def site(self) -> Path:
        return next((self.folder / "lib").glob("python3*/site-packages"))

    def run(
        self, *words: str | Path, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        known = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_COMM", "PYTHON"))}
        return subprocess.run(
            [str(self.python), *map(str, words)],
            capture_output=True,
            text=True,
            timeout=600,
            env={**known, **(env or {})},
            check=False,
        )

    def pip(self, *words: str | Path) -> str:
        """Runs the tests' pip on this environment; returns its output; fails if pip does."""
        command = [sys.executable, "-m", "pip", "--python", str(self.python), *map(str, words)]
        command += ["--disable-pip-version-check", "--no-input"]
        run = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        if run.returncode:
            raise AssertionError(f"{' '.join(command)}\n{run.stdout}{run.stderr}")
        return run.stdout + run.stderr

    def import_as_rank(self, **env: str) -> str:
        """The output of `import tensorflow` in one of two ranks."""
        known = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0", "PYTHONHASHSEED": "0"}
        return self.run("-c", "import tensorflow", env={**known, **env}).stderr

    def fault(self) -> str | None:
        return self._ask("fault")

    def owners(self) -> tuple[str, list[str]]:
        return self._ask("owners")

    def _ask(self, function: str) -> Any:
        return runpy.run_path(str(_INSTALLATION))[function](str(self.site))
