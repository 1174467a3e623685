"""`import horovod` and `import ddl`: what is found, with and without a real one; no TensorFlow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from extras import load_config

LOOK = """
import importlib.util, sys
spec = importlib.util.find_spec("NAME")
print("none" if spec is None else spec.origin)
assert "tensorflow" not in sys.modules
"""


def found(name: str, path: str = "", **env: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", LOOK.replace("NAME", name)],
        env={**os.environ, "PYTHONPATH": path, **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        cwd="/",
    )
    return run.stdout.strip()


@pytest.fixture
def real(tmp_path: Path) -> str:
    """A path with real packages of these names."""
    for name in ("horovod", "ddl"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    return str(tmp_path)


@pytest.mark.parametrize(
    ("name", "switch"),
    [
        *(("horovod", "TF_MPI_COMPAT"), ("ddl", "TF_MPI_COMPAT")),
        *(("horovod", "TF_MPI_HOROVOD"), ("ddl", "TF_MPI_DDL")),  # names in earlier versions
    ],
)
def test_a_real_one_is_not_shadowed(name, switch, real, tmp_path):
    ours = f"tensorflow/mpi/compat/{name}/__init__.py"
    theirs = f"{real}/{name}/__init__.py"
    assert found(name).endswith(ours)
    assert found(name, real) == theirs
    assert found(name, real, **{switch: "1"}).endswith(ours)
    assert found(name, **{switch: "0"}) == "none"
    assert found(name, real, **{switch: "0"}) == theirs
    folder = found(name).removesuffix(f"/{name}/__init__.py")
    assert found(name, folder, **{switch: "0"}).endswith(ours)  # on PYTHONPATH, without the .pth
    other = tmp_path / "folders"
    (other / name).mkdir(parents=True)  # a folder of that name is not a package
    assert found(name, str(other)).endswith(ours)


def test_config_lists_the_switches():
    config = load_config()
    assert config.get("TF_MPI_COMPAT", {}) == ""
    for switch in ("TF_MPI_COMPAT", "TF_MPI_HOROVOD", "TF_MPI_DDL"):
        assert config.get("TF_MPI_COMPAT", {switch: "1"}) == "1"
        with pytest.raises(config.ConfigError, match=f"{switch}='yes' is not accepted"):
            config.check({switch: "yes"})
    assert config.get("TF_MPI_COMPAT", {"TF_MPI_COMPAT": "0", "TF_MPI_HOROVOD": "1"}) == "0"
    assert found("horovod", TF_MPI_COMPAT="0", TF_MPI_HOROVOD="1") == "none"
