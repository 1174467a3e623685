"""A program ends with `done(name=value, ...)`, whose values run.py compares."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (str, bool, int, type(None))):
        return value
    return np.asarray(value).astype(float).tolist()


def done(**values: Any) -> None:
    """Accepts arrays, numbers, strings, and dicts and lists of them."""
    rank = os.environ.get("OMPI_COMM_WORLD_RANK", "0")
    (Path(os.environ["OTHERS_OUT"]) / f"{rank}.json").write_text(json.dumps(_plain(values)))
