"""The documents say what the code says, and name files that exist."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def test_parameters_are_printed_from_the_registry() -> None:
    path = ROOT / "tensorflow_patches/python/config.py"
    spec = importlib.util.spec_from_file_location("tfmpi_config", path)
    assert spec is not None and spec.loader is not None
    config = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = config  # dataclasses look their module up
    spec.loader.exec_module(config)
    text = (ROOT / "docs/parameters.md").read_text()
    assert text.endswith(config.describe() + "\n"), "print it anew: python -m tensorflow.mpi config"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/semantics.md"])
def test_files_that_a_page_names_exist(page: str) -> None:
    named = re.findall(
        r"`((?:docs|tests|examples|tensorflow_patches|build)/[\w./-]+)`", (ROOT / page).read_text()
    )
    missing = [name for name in named if not (ROOT / name).exists()]
    assert not missing
